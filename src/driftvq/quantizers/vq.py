"""Vanilla vector quantization (van den Oord et al., 2017)."""

from driftvq.quantizers.codebook import TrainedCodebook
from driftvq.quantizers.registry import register


@register("vq")
class VQ(TrainedCodebook):
    """The quantizer of the VQ-VAE: nearest code, codebook trained by gradient.

    ``loss = mse(sg z, c) + β · mse(z, sg c)``

    β is ``commitment_weight`` and stands on the encoder's term. With ``restart_after`` it has the random restart of
    SoundStream, with ``orthogonal_weight`` orthogonal regularisation.

    >>> vq = VQ(dim=64, codebook_size=1024, channel_first=True)
    >>> quantized, indices, loss = vq(torch.randn(2, 64, 8, 8))
    >>> indices.shape
    torch.Size([2, 8, 8])

    Args:
        See :class:`driftvq.quantizers.codebook.TrainedCodebook`.
    """
