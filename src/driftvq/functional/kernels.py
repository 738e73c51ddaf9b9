"""Kernels that say how strongly a latent moves the codes it did not select, and their blocked application.

Shape suffixes: n latents, k codes, d dimensions, v values, b latents of one block.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks
from driftvq.functional.search import nearest

Kernel = Literal["gaussian", "softmax", "rank"]
KERNELS: tuple[Kernel, ...] = ("gaussian", "softmax", "rank")

RANK_CUTOFF = 1e-4
"""Rank weights below this are taken as zero, so that only the nearest codes need sorting."""

RANK_ELEMENTS = 2**22
"""Sorting is dear: above this many distances the rank kernel is estimated from a random part of the batch."""


def gaussian_weights(sq_dist_bk: Tensor, bandwidth: Tensor) -> Tensor:
    """``w_k = exp(-|x - c_k|² / 2σ²)`` with ``bandwidth`` = 2σ² (Eq. 14)."""
    return sq_dist_bk.div(-bandwidth).exp_()


def softmax_weights(sq_dist_bk: Tensor, bandwidth: Tensor, gain: float = 1.0) -> Tensor:
    """``w_k = min(1, gain · softmax_k(-|x - c_k|² / bandwidth))``; the published code has gain 0.01·K."""
    return sq_dist_bk.div(-bandwidth).softmax(dim=1).mul_(gain).clamp_(max=1)


def rank_weights(sq_dist_bk: Tensor, bandwidth: Tensor) -> Tensor:
    """``w_k = exp(-rank_k / bandwidth)``, rank 0 the nearest code: the neural-gas kernel, free of any scale."""
    codes = sq_dist_bk.shape[1]
    near = min(codes, 1 + math.ceil(-math.log(RANK_CUTOFF) * float(bandwidth)))
    order_bn = sq_dist_bk.topk(near, dim=1, largest=False).indices
    by_rank_n = torch.arange(near, device=order_bn.device).to(sq_dist_bk.dtype).div_(-bandwidth).exp_()
    return torch.zeros_like(sq_dist_bk).scatter_(1, order_bn, by_rank_n.expand_as(order_bn))


def kernel_weights(kernel: Kernel, sq_dist_bk: Tensor, bandwidth: Tensor, gain: float = 1.0) -> Tensor:
    """Weights of every code for every latent of a block, by the name of the kernel."""
    if kernel == "gaussian":
        return gaussian_weights(sq_dist_bk, bandwidth)
    if kernel == "softmax":
        return softmax_weights(sq_dist_bk, bandwidth, gain)
    if kernel == "rank":
        return rank_weights(sq_dist_bk, bandwidth)
    raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")


def kernel_transfer(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Carry values from latents to the codes that were *not* selected: ``out_k = Σ_{i: k ≠ win(i)} w_ik · values_i``.

    The one primitive behind NS-VQ: with values ``[x, 1]`` it yields the kernel-weighted sums and masses of its codebook
    update, with values the decoder's gradient it yields the ΔE variant. Distances, winners and weights live for one
    block of latents; two matmuls do the work.

    Args:
        x_nd: latents ``(n, d)``.
        codebook_kd: codes ``(k, d)``.
        values_nv: what each latent carries ``(n, v)``.
        kernel: ``"gaussian"``, ``"softmax"`` or ``"rank"``.
        bandwidth: scalar tensor: 2σ², the softmax temperature or the rank decay.
        gain: factor of the softmax kernel.

    Returns:
        The selected codes ``(n,)`` and the transferred values ``(k, v)``. No gradient flows through either.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")
    x_nd, codebook_kd, values_nv = x_nd.detach(), codebook_kd.detach(), values_nv.detach()
    indices_n, transferred_kv = _kernel_transfer_op(x_nd, codebook_kd, values_nv, kernel, bandwidth, gain)
    return indices_n, transferred_kv


@torch.library.custom_op("driftvq::kernel_transfer", mutates_args=())
def _kernel_transfer_op(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: str, bandwidth: Tensor, gain: float
) -> tuple[Tensor, Tensor]:
    codes = len(codebook_kd)
    transferred_kv = values_nv.new_zeros(codes, values_nv.shape[1])
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    origin_d = codebook_kd.mean(dim=0)
    x_nd, codebook_kd = x_nd - origin_d, codebook_kd - origin_d
    if kernel == "rank":
        return nearest(x_nd, codebook_kd), _transfer_by_rank(x_nd, codebook_kd, values_nv, bandwidth, transferred_kv)
    scaled_nv, lifted_kv = _lift(x_nd, codebook_kd, bandwidth)
    indices_n = torch.empty(len(x_nd), dtype=torch.int64, device=x_nd.device)
    # Exponentials below the smallest normal number would slow everything down several times.
    lowest = 0.8 * math.log(torch.finfo(x_nd.dtype).tiny)
    buffer_bk = x_nd.new_empty(min(len(x_nd), block_rows(codes, x_nd.device)), codes)
    for rows in row_blocks(len(x_nd), codes, x_nd.device):
        logits_bk = torch.mm(scaled_nv[rows], lifted_kv.t(), out=buffer_bk[: rows.stop - rows.start])
        highest_b, indices_n[rows] = logits_bk.max(dim=1)
        if kernel == "gaussian":
            weights_bk = F.threshold(logits_bk, lowest, -torch.inf, inplace=True).exp_()
        else:
            torch.maximum(logits_bk, highest_b[:, None] + lowest, out=logits_bk)
            weights_bk = torch.softmax(logits_bk, dim=1, out=logits_bk)
            if gain != 1.0:
                weights_bk.mul_(gain).clamp_(max=1)
        weights_bk.scatter_(1, indices_n[rows, None], 0)
        transferred_kv.addmm_(weights_bk.t(), values_nv[rows])
    return indices_n, transferred_kv


@_kernel_transfer_op.register_fake
def _(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: str, bandwidth: Tensor, gain: float
) -> tuple[Tensor, Tensor]:
    indices_n = x_nd.new_empty(x_nd.shape[0], dtype=torch.int64)
    return indices_n, values_nv.new_empty(codebook_kd.shape[0], values_nv.shape[1])


def _lift(x_nd: Tensor, codebook_kd: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
    """Factors whose product is ``-|x - c|² / bandwidth``, so that one matmul gives the exponents."""
    squares_n1, squares_k1 = (t.square().sum(dim=1, keepdim=True) for t in (x_nd, codebook_kd))
    scaled_nv = torch.cat([2 * x_nd, -squares_n1, -torch.ones_like(squares_n1)], dim=1) / bandwidth
    return scaled_nv, torch.cat([codebook_kd, torch.ones_like(squares_k1), squares_k1], dim=1)


def _transfer_by_rank(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, bandwidth: Tensor, out_kv: Tensor
) -> Tensor:
    latents, most = len(x_nd), max(1, RANK_ELEMENTS // len(codebook_kd))
    if latents > most:
        # Not every n-th: that would line up with the rows of an image.
        part = torch.randperm(latents, generator=torch.Generator().manual_seed(0))[:most].to(x_nd.device)
        x_nd, values_nv = x_nd[part], values_nv[part] * (latents / most)
    for rows in row_blocks(len(x_nd), 4 * len(codebook_kd), x_nd.device):  # sorting needs room for distances and order
        dist_bk = torch.cdist(x_nd[rows], codebook_kd)  # ranks as their squares do
        weights_bk = rank_weights(dist_bk, bandwidth)
        weights_bk.scatter_(1, dist_bk.argmin(dim=1, keepdim=True), 0)
        out_kv.addmm_(weights_bk.t(), values_nv[rows])
    return out_kv
