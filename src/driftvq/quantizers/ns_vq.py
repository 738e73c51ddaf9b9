"""NS-VQ (the paper, Sec. 3.3): the codes that were not selected move too."""

from collections.abc import Sequence
from typing import Unpack

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.drift import Drift
from driftvq.quantizers.codebooks.features import AffineFeatures
from driftvq.quantizers.codebooks.following import PARTS, FollowingCodes, default_commitment, make_parts
from driftvq.quantizers.quantizer import register


@register("ns_vq")
class NSVQ(CodebookQuantizer):
    """Non-stationary VQ: what the latents of a batch show of the encoder's movement moves every code.

    ``Δc = g · s · f(c) (W + V)``  with  ``f(c) = (1, c̄/√d)``

    This is Eq. 12, of which the kernel of Eq. 17 is the version for one latent: the displacement of the latents from
    their codes predicts, by regression, how far every other code has to move. Three parts move the codebook, once per
    training step:

    1. ``"drift"``: an affine field W, fitted to the displacements and confirmed by the next batches, and its velocity V
       move *every* code (:class:`driftvq.quantizers.codebooks.drift.Drift`);
    2. ``"winners"``: each selected code goes to the running mean of its latents
       (:class:`driftvq.quantizers.codebooks.winners.Winners`);
    3. ``"relocation"``: a code that no latent selected for long goes to a latent that is badly served
       (:class:`driftvq.quantizers.codebooks.relocation.Relocation`).

    ``loss = β · mse(z, sg c)``: no optimizer is involved, so the codebook follows the encoder at once, whatever the
    learning rate, and there is nothing to tune. The literal form of the paper is
    :class:`driftvq.quantizers.ns_vq_paper.NSVQPaper`.

    >>> vq = NSVQ(dim=64, codebook_size=1024, channel_first=True)
    >>> quantized, indices, loss = vq(torch.randn(2, 64, 8, 8))
    >>> indices.shape
    torch.Size([2, 8, 8])

    Args:
        parts: which of the three act; an ablation leaves one out.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on by default and
            ``commitment_weight`` is :func:`driftvq.quantizers.codebooks.following.default_commitment`.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        parts: Sequence[str] = PARTS,
        **options: Unpack[CodebookOptions],
    ) -> None:
        code_dim = dim if codebook_dim is None else codebook_dim
        options = {"kmeans_init": True, "commitment_weight": default_commitment(code_dim), **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        moved_by = make_parts(parts, lambda: Drift(AffineFeatures(self.codebook_dim)))
        self._own(FollowingCodes(codebook_size, self.codebook_dim, moved_by, self.estimator.trains_codebook))
