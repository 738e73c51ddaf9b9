"""Quantizers behind the calls of other packages, and their weights as driftvq's quantizers.

The models of taming, diffusers, LlamaGen, SimVQ and Open-MAGVIT2 take quantizers with ``channel_first=True`` and one
index per position. The codecs of audio are in :mod:`driftvq.quantizers.codec_adapters`.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, Unpack

import torch
from torch import Tensor, nn

from driftvq.functional import count_codes, perplexity
from driftvq.quantizers import EMAVQ, VQ, FactorizedVQ, Quantizer, SimVQ
from driftvq.quantizers.codebook import CodebookOptions

RECENT_STEPS = 100  # training steps over which usage is reported
PROJECTION_KEYS = ("project_in.weight", "project_in.bias", "project_out.weight", "project_out.bias")

Loaded = TypeVar("Loaded", bound=Quantizer)


class ImageAdapter(nn.Module):
    """Base: a quantizer ``vq`` with one index per position, for latents ``b c h w``: it has ``channel_first=True``."""

    n_e = property(attrgetter("vq.codebook_size"))

    def __init__(self, vq: Quantizer) -> None:
        super().__init__()
        name = type(vq).__name__
        if not isinstance(vq, Quantizer):
            raise ValueError(f"this takes a quantizer of driftvq, got {name}")
        if not vq.channel_first:
            raise ValueError(f"these latents are b c h w: {name} needs channel_first=True, got False")
        if vq.indices_per_position:
            raise ValueError(f"this package has one index per position, {name} gives {vq.indices_per_position}")
        self.vq = vq
        self.e_dim = self.vq_embed_dim = vq.dim

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
    """A quantizer for taming, latent-diffusion and diffusers, whose ``VQModel`` takes it as its ``quantize``.

    ``one_hot`` is always None, as in their newer versions. Their β stands on the codebook's term unless
    ``legacy=False``; here it stands on the encoder's.

    >>> from driftvq import VQ
    >>> q = as_taming(VQ(dim=4, codebook_size=16, channel_first=True))
    >>> z_q, loss, (perplexity, one_hot, indices) = q(torch.randn(2, 4, 8, 8))
    >>> indices.shape, q.get_codebook_entry(indices, (2, 8, 8, 4)).shape
    (torch.Size([128]), torch.Size([2, 4, 8, 8]))
    """

    def forward(self, z: Tensor, temp: float | None = None) -> tuple[Tensor, Tensor, tuple[Tensor, None, Tensor]]:
        """Latents ``b c h w`` to quantised latents, loss, and (perplexity of the batch, None, flat indices).

        ``temp`` is there for their Gumbel-softmax and ignored.
        """
        if z.ndim != 4:
            raise ValueError(f"latents must be b c h w, got shape {tuple(z.shape)}")
        z_q, indices, loss = self.vq(z)
        used = perplexity(count_codes(indices, self.n_e)).to(loss.dtype)
        return z_q, loss, (used, None, indices.flatten())


class LlamaGenQuantizer(ImageAdapter):
    """A quantizer for LlamaGen's ``VQModel``, as its ``quantize``.

    ``z_q, (codebook, commitment, entropy, usage), (perplexity, one_hot, indices) = q(z)``: the first three are weighted
    and add up to the quantizer's loss, in evaluation too, where theirs are None; ``perplexity`` and ``one_hot`` are
    None, as theirs.
    """

    def forward(self, z: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor], tuple[None, None, Tensor]]:
        """Latents ``b c h w`` to quantised latents, the parts of the loss with the usage, and flat indices."""
        details, weights = self.vq.details(z), self.vq.term_weights
        commitment, codebook = weights[0] * details.terms.commitment, weights[1] * details.terms.codebook
        others = details.loss - codebook - commitment
        usage = (self.vq.code_age < self.vq.step.clamp(max=RECENT_STEPS)).float().mean()
        return details.quantized, (codebook, commitment, others, usage), (None, None, details.indices.flatten())

    def get_codebook_entry(
        self, indices: Tensor, shape: tuple[int, int, int, int] | None = None, channel_first: bool = True
    ) -> Tensor:
        """Codes of indices whose latents were ``(b, c, h, w)``, or ``(b, h, w, c)`` if not ``channel_first``."""
        return self._entry(indices, shape, channels=1 if channel_first else 3, first=channel_first)


class LossBreakdown(NamedTuple):
    """The terms of the loss as SimVQ and Open-MAGVIT2 name them; the average probabilities are not computed."""

    per_sample_entropy: Tensor
    codebook_entropy: Tensor
    commitment: Tensor
    avg_probs: Tensor


class OpenMagvit2Quantizer(ImageAdapter):
    """A quantizer for Open-MAGVIT2's ``VQModel``: ``(z_q, emb_loss, indices), breakdown = q(z)``.

    Its loss weights both by itself: ``breakdown.commitment``, and ``emb_loss``, which holds the other terms.
    """

    weighted: ClassVar[bool] = False

    def forward(self, z: Tensor, temp: float | None = None, return_loss_breakdown: bool = True) -> Any:
        """Latents ``b c …`` to (quantised latents, loss, flat indices) and the breakdown; ``temp`` is ignored."""
        details = self.vq.details(z)
        zero = details.loss.new_zeros(())
        commitment, codebook, entropy, orthogonality = details.terms
        emb_loss = codebook + entropy + orthogonality
        if self.weighted:
            emb_loss, commitment = zero, details.loss
        found = (details.quantized, emb_loss, details.indices.flatten())
        return (found, LossBreakdown(zero, zero, commitment, zero)) if return_loss_breakdown else found


class SimVQQuantizer(OpenMagvit2Quantizer):
    """A quantizer for SimVQ's ``VQModel``, which takes ``breakdown.commitment`` as it is: the whole loss, weighted."""

    weighted = True


as_taming, as_llamagen = TamingQuantizer, LlamaGenQuantizer
as_open_magvit2, as_simvq = OpenMagvit2Quantizer, SimVQQuantizer


def from_taming(state_dict: Mapping[str, Tensor], prefix: str | None = None, **options: Unpack[CodebookOptions]) -> VQ:
    """The quantizer of a taming, latent-diffusion or diffusers state dict, with ``channel_first=True``.

    That of a whole model may be given; ``prefix`` is what stands there before ``embedding.weight``, e.g.
    ``"quantize."``; None: wherever it is, if in one place. None of the options is in a state dict.
    """
    name = "embedding.weight"
    if prefix is None:
        found = [key.removesuffix(name) for key in state_dict if key == name or key.endswith(f".{name}")]
        if len(found) != 1:
            raise ValueError(f"expected one key that ends in {name!r}, got {[key + name for key in found]}")
        prefix = found[0]
    state = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    _check_keys(state, {name}, {name})
    codebook_size, dim = state[name].shape
    options.setdefault("channel_first", True)
    return _load_(VQ(dim, codebook_size, **options), {"book.codes": state[name]})


def from_vector_quantize_pytorch(
    state_dict: Mapping[str, Tensor], *, learnable_codebook: bool = False, use_cosine_sim: bool = False, **options: Any
) -> Quantizer:
    """The quantizer of a state dict of vector-quantize-pytorch's ``VectorQuantize`` or ``SimVQ``.

    In evaluation it gives the indices and outputs of the original. What a state dict does not hold has driftvq's
    defaults unless it is among the options: ``decay``, ``commitment_weight``, ``estimator="rotation"`` (the
    original's default), ``channel_first=True`` (its ``accept_image_fmap``) and so on.

    Returns :class:`SimVQ`, or for ``VectorQuantize`` :class:`EMAVQ`, :class:`VQ` if its codebook is learnable and
    :class:`FactorizedVQ` if it is compared by cosine, which the state dict does not tell; the last is trained on by
    gradient, not by moving average.
    """
    if "frozen_codebook" in state_dict:
        return _from_sim_vq(state_dict, **options)
    if learnable_codebook and use_cosine_sim:
        raise ValueError("VectorQuantize has no learnable_codebook=True with use_cosine_sim=True")
    own = {f"_codebook.{name}" for name in ("embed", "cluster_size", "embed_avg", "initted")}
    projections = set(PROJECTION_KEYS) & set(state_dict)
    _check_keys(state_dict, own | projections, own | (set(PROJECTION_KEYS) if projections else set()))
    codes_kd, size_k, sum_kd = (_one_head(state_dict, f"_codebook.{n}") for n in ("embed", "cluster_size", "embed_avg"))
    codebook_size, codebook_dim = codes_kd.shape
    dim = state_dict["project_in.weight"].shape[1] if projections else codebook_dim
    if projections and len(state_dict["project_in.weight"]) != codebook_dim:
        shapes = {key: tuple(state_dict[key].shape) for key in ("project_in.weight", "_codebook.embed")}
        raise ValueError(f"several heads cannot be loaded, got {shapes}")
    cls = FactorizedVQ if use_cosine_sim else VQ if learnable_codebook else EMAVQ
    tensors = {key: state_dict[key] for key in projections} | {"book.codes": codes_kd}
    if cls is EMAVQ:
        tensors |= {"book.cluster_size": size_k, "book.cluster_sum": sum_kd}
    return _load_(cls(dim, codebook_size, codebook_dim, **options), tensors, bool(state_dict["_codebook.initted"]))


def _from_sim_vq(state_dict: Mapping[str, Tensor], **options: Any) -> SimVQ:
    keys = {"frozen_codebook", "code_transform.weight"}
    _check_keys(state_dict, keys, keys)
    base_kd, weight_dd = state_dict["frozen_codebook"], state_dict["code_transform.weight"]
    codebook_size, dim = base_kd.shape
    if tuple(weight_dd.shape) != (dim, dim):
        fit = f"be square and fit frozen_codebook {tuple(base_kd.shape)}"
        raise ValueError(f"code_transform.weight must {fit}, got {tuple(weight_dd.shape)}")
    return _load_(SimVQ(dim, codebook_size, **options), {"book.base": base_kd, "book.transform.weight": weight_dd})


def _load_(quantizer: Loaded, tensors: dict[str, Tensor], started: bool = True) -> Loaded:
    """Load tensors by driftvq's names; a k-means start is over if the codebook it would make is being loaded."""
    quantizer.load_state_dict({**quantizer.state_dict(), **tensors, "start.finished": torch.tensor(float(started))})
    return quantizer


def _one_head(state_dict: Mapping[str, Tensor], key: str) -> Tensor:
    """A tensor without its leading dimension, the codebooks of a multi-headed quantizer."""
    tensor = state_dict[key]
    if len(tensor) != 1:
        raise ValueError(f"several codebooks cannot be loaded, got {key} of shape {tuple(tensor.shape)}")
    return tensor[0]


def _check_keys(state_dict: Mapping[str, Tensor], allowed: set[str], needed: set[str]) -> None:
    unknown, missing = sorted(set(state_dict) - allowed), sorted(needed - set(state_dict))
    if unknown or missing:
        parts = [f"{what} keys {keys}" for what, keys in (("unknown", unknown), ("missing", missing)) if keys]
        raise ValueError(f"the state dict cannot be loaded: {' and '.join(parts)}")
