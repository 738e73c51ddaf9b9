"""Quantizers behind the calls of other packages: taming, diffusers, LlamaGen, SimVQ and Open-MAGVIT2.

They take quantizers with ``channel_first=True`` and one index per position. The codecs of audio are in
:mod:`driftvq.quantizers.codec_adapters`.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from driftvq.functional import count_codes, perplexity
from driftvq.quantizers.quantizer import Quantizer

RECENT_STEPS = 100
"""Training steps over which usage is reported."""


class ImageAdapter(nn.Module):
    """Base: a quantizer ``vq`` with one index per position, for latents ``b c h w``: it has ``channel_first=True``."""

    def __init__(self, vq: Quantizer) -> None:
        super().__init__()
        if not vq.channel_first:
            raise ValueError(f"these latents are b c h w: {type(vq).__name__} needs channel_first=True, got False")
        if vq.indices_per_position:
            raise ValueError(
                f"this package has one index per position, {type(vq).__name__} gives {vq.indices_per_position}"
            )
        self.vq = vq
        self.e_dim = self.vq_embed_dim = vq.dim

    @property
    def n_e(self) -> int:
        """Number of codes."""
        return self.vq.codebook_size

    @property
    def beta(self) -> float:
        """The quantizer's commitment weight, 0 where it has none."""
        return float(getattr(self.vq, "commitment_weight", 0.0))

    def embed_code(self, indices: Tensor) -> Tensor:
        """Codes ``b c h w`` of indices ``b h w``."""
        return self.vq.indices_to_codes(indices)

    def get_codebook_entry(self, indices: Tensor, shape: tuple[int, int, int, int] | None = None) -> Tensor:
        """Codes ``b c h w`` of indices whose latents had the shape ``(b, h, w, c)``; without it, with c last."""
        return self._entry(indices, shape, channels=3, first=True)

    def _entry(self, indices: Tensor, shape: tuple[int, ...] | None, channels: int, first: bool) -> Tensor:
        """Codes of indices of any shape, in a shape whose entry ``channels`` is c, with c first or last."""
        codes_nc = self.vq.indices_to_codes(indices.flatten())
        if shape is None:
            return codes_nc.reshape(*indices.shape, self.e_dim)
        if len(shape) != 4 or shape[channels] != self.e_dim:
            order = "(b, c, h, w)" if channels == 1 else "(b, h, w, c)"
            raise ValueError(f"shape must be {order} with c = {self.e_dim}, got {tuple(shape)}")
        positions = [size for axis, size in enumerate(shape) if axis != channels]
        codes = codes_nc.reshape(*positions, self.e_dim)
        return codes.movedim(-1, 1).contiguous() if first else codes


class TamingQuantizer(ImageAdapter):
    """Made by :func:`as_taming`."""

    def forward(self, z: Tensor, temp: float | None = None) -> tuple[Tensor, Tensor, tuple[Tensor, None, Tensor]]:
        """Latents ``b c h w`` to quantised latents, loss, and (perplexity of the batch, None, flat indices).

        ``temp`` is there for their Gumbel-softmax and ignored.
        """
        if z.ndim != 4:
            raise ValueError(f"latents must be b c h w, got shape {tuple(z.shape)}")
        z_q, indices, loss = self.vq(z)
        used = perplexity(count_codes(indices, self.n_e)).to(loss.dtype)
        return z_q, loss, (used, None, indices.flatten())


def as_taming(vq: Quantizer) -> TamingQuantizer:
    """A quantizer for taming, latent-diffusion and diffusers, whose ``VQModel`` takes it as its ``quantize``.

    ``one_hot`` is always None, as in their newer versions. Their β stands on the codebook's term unless
    ``legacy=False``; here it stands on the encoder's.

    >>> from driftvq import VQ
    >>> q = as_taming(VQ(dim=4, codebook_size=16, channel_first=True))
    >>> z_q, loss, (perplexity, one_hot, indices) = q(torch.randn(2, 4, 8, 8))
    >>> indices.shape, q.get_codebook_entry(indices, (2, 8, 8, 4)).shape
    (torch.Size([128]), torch.Size([2, 4, 8, 8]))
    """
    return TamingQuantizer(vq)


class LlamaGenQuantizer(ImageAdapter):
    """Made by :func:`as_llamagen`."""

    def forward(self, z: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor], tuple[None, None, Tensor]]:
        """Latents ``b c h w`` to quantised latents, the parts of the loss with the usage, and flat indices."""
        details = self.vq.details(z)
        weights = self.vq.term_weights
        commitment, codebook = weights[0] * details.terms.commitment, weights[1] * details.terms.codebook
        others = details.loss - codebook - commitment
        usage = (self.vq.code_age < self.vq.step.clamp(max=RECENT_STEPS)).float().mean()
        loss = (codebook, commitment, others, usage)
        return details.quantized, loss, (None, None, details.indices.flatten())

    def get_codebook_entry(
        self, indices: Tensor, shape: tuple[int, int, int, int] | None = None, channel_first: bool = True
    ) -> Tensor:
        """Codes of indices whose latents were ``(b, c, h, w)``, or ``(b, h, w, c)`` if not ``channel_first``."""
        return self._entry(indices, shape, channels=1 if channel_first else 3, first=channel_first)


def as_llamagen(vq: Quantizer) -> LlamaGenQuantizer:
    """A quantizer for LlamaGen's ``VQModel``, as its ``quantize``.

    ``z_q, (codebook, commitment, entropy, usage), (perplexity, one_hot, indices) = q(z)``: the first three are weighted
    and add up to the quantizer's loss, in evaluation too, where theirs are None; ``perplexity`` and ``one_hot`` are
    None, as theirs.
    """
    return LlamaGenQuantizer(vq)


class LossBreakdown(NamedTuple):
    """The terms of the loss as SimVQ and Open-MAGVIT2 name them; the average probabilities are not computed."""

    per_sample_entropy: Tensor
    codebook_entropy: Tensor
    commitment: Tensor
    avg_probs: Tensor


class BreakdownQuantizer(ImageAdapter):
    """Made by :func:`as_simvq` and :func:`as_open_magvit2`: ``(z_q, emb_loss, indices), breakdown = q(z)``.

    Weighted, ``breakdown.commitment`` is the whole loss and ``emb_loss`` 0. Otherwise it is the commitment without a
    weight, and ``emb_loss`` holds the other terms without theirs.
    """

    def __init__(self, vq: Quantizer, weighted: bool) -> None:
        super().__init__(vq)
        self.weighted = weighted

    def forward(self, z: Tensor, temp: float | None = None, return_loss_breakdown: bool = True) -> Any:
        """Latents ``b c …`` to (quantised latents, loss, flat indices) and the breakdown; ``temp`` is ignored."""
        details = self.vq.details(z)
        zero = details.loss.new_zeros(())
        commitment, codebook, entropy, orthogonality = details.terms
        if self.weighted:
            emb_loss, commitment = zero, details.loss
        else:
            emb_loss = codebook + entropy + orthogonality
        found = (details.quantized, emb_loss, details.indices.flatten())
        return (found, LossBreakdown(zero, zero, commitment, zero)) if return_loss_breakdown else found


def as_simvq(vq: Quantizer) -> BreakdownQuantizer:
    """A quantizer for SimVQ's ``VQModel``, whose loss takes ``breakdown.commitment`` as it is: β is the quantizer's."""
    return BreakdownQuantizer(vq, weighted=True)


def as_open_magvit2(vq: Quantizer) -> BreakdownQuantizer:
    """A quantizer for Open-MAGVIT2's ``VQModel``, whose loss weights ``emb_loss`` and the commitment by itself."""
    return BreakdownQuantizer(vq, weighted=False)
