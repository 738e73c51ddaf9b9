"""Other libraries' weights as driftvq's quantizers."""

from collections.abc import Mapping
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor

from driftvq.quantizers import EMAVQ, VQ, FactorizedVQ, Quantizer, SimVQ
from driftvq.quantizers.codebook import CodebookOptions

PROJECTION_KEYS = ("project_in.weight", "project_in.bias", "project_out.weight", "project_out.bias")

Loaded = TypeVar("Loaded", bound=Quantizer)


def from_taming(state_dict: Mapping[str, Tensor], prefix: str | None = None, **options: Unpack[CodebookOptions]) -> VQ:
    """The quantizer of a taming, latent-diffusion or diffusers state dict, with ``channel_first=True``.

    Args:
        state_dict: of the quantizer, or of a whole model.
        prefix: what stands before ``embedding.weight``, e.g. ``"quantize."``; None: wherever it is, if in one place.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; a state dict holds none of them.
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

    Args:
        state_dict: of one ``VectorQuantize`` or ``SimVQ``.
        learnable_codebook, use_cosine_sim: as it was built; the state dict looks the same.
        options: arguments of the driftvq quantizer.

    Returns:
        :class:`SimVQ`, or for ``VectorQuantize`` :class:`EMAVQ`, :class:`VQ` if the codebook is learnable and
        :class:`FactorizedVQ` if it is compared by cosine; the last is trained on by gradient, not by moving average.
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
    started = bool(state_dict["_codebook.initted"])
    return _load_(cls(dim, codebook_size, codebook_dim, **options), tensors, started)


def _from_sim_vq(state_dict: Mapping[str, Tensor], **options: Any) -> SimVQ:
    keys = {"frozen_codebook", "code_transform.weight"}
    _check_keys(state_dict, keys, keys)
    base_kd, weight_dd = state_dict["frozen_codebook"], state_dict["code_transform.weight"]
    codebook_size, dim = base_kd.shape
    if tuple(weight_dd.shape) != (dim, dim):
        raise ValueError(
            f"code_transform.weight must be square and fit frozen_codebook {tuple(base_kd.shape)}, "
            f"got {tuple(weight_dd.shape)}"
        )
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
