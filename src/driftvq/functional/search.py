"""Exact nearest-code search.

Shape suffixes: n latents, k codes, d dimensions.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor

from driftvq.functional.blocks import row_blocks
from driftvq.functional.search_ways import (
    METRICS,
    Metric,
    Scoring,
    fastest,
    highest_by_blocks,
    highest_by_blocks_of_codes,
    load_faiss,
    nearest_by_blocks,
    nearest_by_faiss,
    scoring,
)

Way = Literal["auto", "blocks", "faiss", "triton"]
WAYS: tuple[Way, ...] = ("auto", "blocks", "faiss", "triton")
Search = Callable[[Tensor, Scoring], Tensor]

WAY_VARIABLE = "DRIFTVQ_SEARCH"
"""Environment variable that chooses the way for every search that leaves it open."""


def nearest(x_nd: Tensor, codebook_kd: Tensor, metric: Metric = "l2", way: Way = "auto") -> Tensor:
    """Index of the nearest code of every latent, exact, without storing latents × codes.

    ``argmin_k |x - c_k|²`` (l2) or ``argmax_k x·c_k / (|x||c_k|)`` (cosine).

    Exact means in the latents' precision, at least float32: no other code is nearer by more than the rounding of the
    distances, from 1e-18 to 1e18 and beyond. Of codes that are equally near any may win, but the same latents and
    codes give the same indices on one device. Nothing is read back from a device, but to measure ways the first time.
    Blocks are as precise as torch's products are set to be: less, where those may round to TensorFloat-32.

    The ways: ``faiss`` on the CPU where it is installed; ``triton``, a fused kernel, on NVIDIA's and AMD's GPUs for up
    to 256 dimensions; ``blocks`` of one matrix product and one argmax everywhere. ``auto`` takes faiss on the CPU; on
    a GPU it measures once per shape which of the two is faster (:mod:`driftvq.functional.search_ways`).

    Args:
        x_nd: latents, e.g. ``(16384, 64)``.
        codebook_kd: codes, e.g. ``(8192, 64)``.
        metric: ``"l2"`` or ``"cosine"``.
        way: one of :data:`WAYS`; ``"auto"`` takes the one in the environment variable DRIFTVQ_SEARCH if it can.

    Returns:
        int64 indices, e.g. ``(16384,)``.
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {METRICS}, got {metric!r}")
    if way not in WAYS:
        raise ValueError(f"way must be one of {WAYS}, got {way!r}")
    if x_nd.ndim != 2 or codebook_kd.ndim != 2 or x_nd.shape[1] != codebook_kd.shape[1]:
        raise ValueError(
            f"latents (n, d) and codes (k, d) must share d, got {tuple(x_nd.shape)} and {tuple(codebook_kd.shape)}"
        )
    dtype = torch.promote_types(x_nd.dtype, torch.float32)
    x_nd, codebook_kd = x_nd.detach().to(dtype), codebook_kd.detach().to(dtype)
    if torch.compiler.is_exporting():  # a plain graph that every runtime knows
        found = scoring(codebook_kd, metric)
        return highest_by_blocks_of_codes(found.centred(x_nd), found.weight_kd, found.penalty_k, beta=-0.5)
    indices: Tensor = _nearest_op(x_nd, codebook_kd, metric, way)
    return indices


@torch.library.custom_op("driftvq::nearest", mutates_args=())
def _nearest_op(x_nd: Tensor, codebook_kd: Tensor, metric: str, way: str) -> Tensor:
    if len(x_nd) == 0:
        return torch.empty(0, dtype=torch.int64, device=x_nd.device)
    found = scoring(codebook_kd, cast("Metric", metric))
    return _search(x_nd, found, way)(x_nd, found)


_nearest_op.register_fake(lambda x_nd, *rest: x_nd.new_empty(x_nd.shape[0], dtype=torch.int64))


@_nearest_op.register_vmap
def _(info: object, dims: tuple[int | None, ...], x_nd: Tensor, codebook_kd: Tensor, metric: str, way: str) -> Any:
    """One search for all latents of all batches; codebooks that differ are searched one after the other."""
    if dims[1] is None:
        x_bnd = x_nd.movedim(cast("int", dims[0]), 0)
        indices: Tensor = _nearest_op(x_bnd.flatten(0, 1), codebook_kd, metric, way)
        return indices.unflatten(0, x_bnd.shape[:2]), 0
    codebooks = codebook_kd.unbind(dims[1])
    latents = [x_nd] * len(codebooks) if dims[0] is None else x_nd.unbind(dims[0])
    found = [_nearest_op(x, codes, metric, way) for x, codes in zip(latents, codebooks, strict=True)]
    return torch.stack(found), 0


def nearest_few(x_nd: Tensor, codebook_kd: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` nearest codes of every latent by l2, the nearest first: ``(n, count)``; in blocks."""
    dtype = torch.promote_types(x_nd.dtype, torch.float32)
    indices: Tensor = _nearest_few_op(x_nd.detach().to(dtype), codebook_kd.detach().to(dtype), count)
    return indices


@torch.library.custom_op("driftvq::nearest_few", mutates_args=())
def _nearest_few_op(x_nd: Tensor, codebook_kd: Tensor, count: int) -> Tensor:
    found = scoring(codebook_kd, "l2")
    indices_nc = torch.empty(len(x_nd), count, dtype=torch.int64, device=x_nd.device)
    for rows in row_blocks(len(x_nd), len(codebook_kd), x_nd.device):
        scores_bk = torch.addmm(found.penalty_k, found.centred(x_nd[rows]), found.weight_kd.t(), beta=-0.5)
        indices_nc[rows] = scores_bk.topk(count, dim=1).indices
    return indices_nc


_nearest_few_op.register_fake(lambda x_nd, codebook_kd, count: x_nd.new_empty(x_nd.shape[0], count, dtype=torch.int64))


def highest_logit(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    """``argmax_k (x·w_k + b_k)`` of every latent, in blocks; ties as in :func:`nearest`."""
    x_nd, weight_kd, bias_k = x_nd.detach(), weight_kd.detach(), bias_k.detach()
    if torch.compiler.is_exporting():
        return highest_by_blocks_of_codes(x_nd, weight_kd, bias_k)
    indices: Tensor = _highest_logit_op(x_nd, weight_kd, bias_k)
    return indices


@torch.library.custom_op("driftvq::highest_logit", mutates_args=())
def _highest_logit_op(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    return highest_by_blocks(x_nd, weight_kd, bias_k)


_highest_logit_op.register_fake(lambda x_nd, *rest: x_nd.new_empty(x_nd.shape[0], dtype=torch.int64))


def _search(x_nd: Tensor, found: Scoring, way: str) -> Search:
    """The function that searches these latents."""
    ways = available_ways(x_nd)
    if way == "auto":
        by_device = fastest(ways, x_nd, found) if x_nd.device.type == "cuda" else next(iter(ways))
        return ways[_preferred(ways) or by_device]
    if way not in ways:
        raise ValueError(
            f"{way!r} cannot search {x_nd.dtype} latents of {x_nd.shape[1]} dimensions on {x_nd.device}; "
            f"here: 'auto', {', '.join(map(repr, ways))}"
        )
    return ways[way]


def _preferred(ways: dict[str, Search]) -> str | None:
    """What the environment asks for, where it can be had."""
    way = os.environ.get(WAY_VARIABLE, "auto")
    if way not in WAYS:
        raise ValueError(f"{WAY_VARIABLE} must be one of {WAYS}, got {way!r}")
    return way if way in ways else None


def available_ways(x_nd: Tensor) -> dict[str, Search]:
    """What can search latents like these, by name; first the one to take unmeasured."""
    ways: dict[str, Search] = {"blocks": nearest_by_blocks}
    if x_nd.dtype != torch.float32:
        return ways
    if x_nd.device.type == "cpu" and load_faiss() is not None:
        ways = {"faiss": nearest_by_faiss, **ways}
    if x_nd.device.type == "cuda" and (fused := _nearest_by_triton(x_nd)) is not None and _triton_runs_on(x_nd.device):
        ways = {"triton": fused, **ways}
    elif os.environ.get("TRITON_INTERPRET") == "1" and (fused := _nearest_by_triton(x_nd)) is not None:
        ways = {**ways, "triton": fused}
    return ways


def _nearest_by_triton(x_nd: Tensor) -> Search | None:
    module = _triton_search()
    return None if module is None or x_nd.shape[1] > module.MAX_DIMS else module.nearest_by_triton


@cache
def _triton_runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled and run: Triton needs a C compiler, and a device that is not too old."""
    module = _triton_search()
    assert module is not None
    probe_nd = torch.zeros(1, 16, device=device)
    try:
        module.nearest_by_triton(probe_nd, scoring(probe_nd, "l2"))
    except Exception as error:  # whatever keeps a compiler from working, the blocks do not need it
        warnings.warn(f"no fused search on {device}, searching by blocks: {error!r}", RuntimeWarning, stacklevel=2)
        return False
    return True


@cache
def _triton_search() -> ModuleType | None:
    """Triton comes with torch for GPUs; it is large and slow to import, so only where it may be used."""
    try:
        from driftvq.functional import triton_search
    except ImportError:
        return None
    return triton_search
