"""Kernels that say how strongly a latent moves the codes it did not select, and their blocked application.

Shape suffixes: n latents, k codes, d dimensions, v values, b latents of one block.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks

Kernel = Literal["gaussian", "softmax"]
KERNELS: tuple[Kernel, ...] = ("gaussian", "softmax")


def kernel_transfer(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Carry values from latents to the codes that were *not* selected: ``out_k = Σ_{i: k ≠ win(i)} w_ik · values_i``.

    ``w_ik = exp(-|x_i - c_k|² / b)`` (Gaussian, b = 2σ², Eq. 14), or ``min(1, gain · softmax_k(-|x_i - c_k|² / b))``
    (softmax; the published code has gain 0.01·K).

    The one primitive behind NS-VQ's literal forms: with values ``[x, 1]`` it yields the kernel-weighted sums and masses
    of its codebook update, with values the decoder's gradient it yields the ΔE variant. Distances, winners and weights
    live for one block of latents; two matmuls do the work.

    Args:
        x_nd: latents ``(n, d)``.
        codebook_kd: codes ``(k, d)``.
        values_nv: what each latent carries ``(n, v)``.
        kernel: ``"gaussian"`` or ``"softmax"``.
        bandwidth: b, a scalar tensor.
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
