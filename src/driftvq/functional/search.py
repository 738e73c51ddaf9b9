"""Exact nearest-code search.

Shape suffixes: n latents, k codes, d dimensions, b latents of one block.
"""

from functools import cache
from types import ModuleType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks

Metric = Literal["l2", "cosine"]
METRICS: tuple[Metric, ...] = ("l2", "cosine")


def nearest(x_nd: Tensor, codebook_kd: Tensor, metric: Metric = "l2") -> Tensor:
    """Index of the nearest code of every latent, exact, without storing latents × codes.

    ``argmin_k |x - c_k|²`` (l2) or ``argmax_k x·c_k / (|x||c_k|)`` (cosine); ties go to the lowest index.

    The fastest way for the shape and the device is picked: faiss on the CPU where it is installed, blocks of one
    matmul and one argmin elsewhere. Both run in the latents' precision, at least float32.

    Args:
        x_nd: latents, e.g. ``(16384, 64)``.
        codebook_kd: codes, e.g. ``(8192, 64)``.
        metric: ``"l2"`` or ``"cosine"``.

    Returns:
        int64 indices, e.g. ``(16384,)``.
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {METRICS}, got {metric!r}")
    if x_nd.ndim != 2 or codebook_kd.ndim != 2 or x_nd.shape[1] != codebook_kd.shape[1]:
        raise ValueError(
            f"latents (n, d) and codes (k, d) must share d, got {tuple(x_nd.shape)} and {tuple(codebook_kd.shape)}"
        )
    dtype = torch.promote_types(x_nd.dtype, torch.float32)
    x_nd, codebook_kd = x_nd.detach().to(dtype), codebook_kd.detach().to(dtype)
    if metric == "cosine":
        x_nd, codebook_kd = F.normalize(x_nd, dim=1), F.normalize(codebook_kd, dim=1)
    if torch.compiler.is_exporting():  # a plain graph that every runtime knows
        return _nearest_by_blocks(x_nd, codebook_kd)
    indices: Tensor = _nearest_op(x_nd, codebook_kd)
    return indices


@torch.library.custom_op("driftvq::nearest", mutates_args=())
def _nearest_op(x_nd: Tensor, codebook_kd: Tensor) -> Tensor:
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    origin_d = codebook_kd.mean(dim=0)
    x_nd, codebook_kd = x_nd - origin_d, codebook_kd - origin_d
    if x_nd.device.type == "cpu" and x_nd.dtype == torch.float32 and len(x_nd) > 0:
        faiss = _faiss()
        if faiss is not None:
            return _lowest_equal(_nearest_by_faiss(faiss, x_nd, codebook_kd), codebook_kd)
    return _lowest_equal(_nearest_by_blocks(x_nd, codebook_kd), codebook_kd)


@_nearest_op.register_fake
def _(x_nd: Tensor, codebook_kd: Tensor) -> Tensor:
    return x_nd.new_empty(x_nd.shape[0], dtype=torch.int64)


def highest_logit(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    """``argmax_k (x·w_k + b_k)`` of every latent, in blocks; ties go to the lowest index."""
    x_nd, weight_kd, bias_k = x_nd.detach(), weight_kd.detach(), bias_k.detach()
    if torch.compiler.is_exporting():
        return torch.addmm(bias_k, x_nd, weight_kd.t()).argmax(dim=1)
    indices: Tensor = _highest_logit_op(x_nd, weight_kd, bias_k)
    return indices


@torch.library.custom_op("driftvq::highest_logit", mutates_args=())
def _highest_logit_op(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    codes = len(weight_kd)
    indices_n = torch.empty(len(x_nd), dtype=torch.int64, device=x_nd.device)
    buffer_bk = x_nd.new_empty(min(len(x_nd), block_rows(codes, x_nd.device)), codes)
    for rows in row_blocks(len(x_nd), codes, x_nd.device):
        block_bk = buffer_bk[: rows.stop - rows.start]
        torch.argmax(torch.addmm(bias_k, x_nd[rows], weight_kd.t(), out=block_bk), dim=1, out=indices_n[rows])
    return indices_n


@_highest_logit_op.register_fake
def _(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    return x_nd.new_empty(x_nd.shape[0], dtype=torch.int64)


def _nearest_by_blocks(x_nd: Tensor, codebook_kd: Tensor) -> Tensor:
    """``argmin |x - c|² = argmax (x·c - |c|²/2)``."""
    return highest_logit(x_nd, codebook_kd, codebook_kd.square().sum(dim=1).mul_(-0.5))


def _nearest_by_faiss(faiss: ModuleType, x_nd: Tensor, codebook_kd: Tensor) -> Tensor:
    threads, threshold = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    try:
        faiss.omp_set_num_threads(torch.get_num_threads())
        # Below this many elements faiss walks latent by latent; its blocked kernels win at every size.
        faiss.cvar.distance_compute_blas_threshold = 1
        _, indices_n1 = faiss.knn(x_nd.contiguous().numpy(), codebook_kd.contiguous().numpy(), 1)
    finally:
        faiss.omp_set_num_threads(threads)
        faiss.cvar.distance_compute_blas_threshold = threshold
    return torch.from_numpy(indices_n1[:, 0]).clamp_(min=0)  # -1 where every distance is NaN


def _lowest_equal(indices_n: Tensor, codebook_kd: Tensor) -> Tensor:
    """Replace each index by the lowest one whose code is equal.

    Equal codes at different places of a matrix product may get distances that round differently. Equal rows are found
    by a hash of their bits, and compared before an index is replaced.
    """
    generator = torch.Generator().manual_seed(0)
    odd_d = torch.randint(2**62, (codebook_kd.shape[1],), generator=generator).mul_(2).add_(1).to(codebook_kd.device)
    bits_kd = (codebook_kd + 0.0).view(torch.int32 if codebook_kd.dtype == torch.float32 else torch.int64)
    hash_k, order_k = (bits_kd * odd_d).sum(dim=1).sort(stable=True)
    repeats = hash_k[1:] == hash_k[:-1]
    if not repeats.any():
        return indices_n
    first_k = torch.cat([repeats.new_zeros(1), repeats]).logical_not_().cumsum(dim=0) - 1
    lowest_k = torch.empty_like(order_k)
    lowest_k[order_k] = order_k[torch.cat([repeats.new_zeros(1), repeats]).logical_not()][first_k]
    lowest_n = lowest_k[indices_n]
    equal_n = (codebook_kd[lowest_n] == codebook_kd[indices_n]).all(dim=1)
    return torch.where(equal_n, lowest_n, indices_n)


@cache
def _faiss() -> ModuleType | None:
    try:
        import faiss
    except ImportError:
        return None
    module: ModuleType = faiss
    return module
