"""How gradients reach codes and encoder: losses, estimators, and kernels that reach the codes that were not selected.

Every mean of a loss runs over the valid latents only. Estimators pass the decoder's gradient through the choice of a
code: all return exactly the selected codes, but for :func:`directional`, and differ in the gradient alone.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import highest, index_like, operator, product, row_blocks
from driftvq.names import one_of

Kernel = Literal["gaussian", "softmax"]
KERNELS: tuple[Kernel, ...] = ("gaussian", "softmax")


def kernel_transfer(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Carry values from latents to the codes that were *not* selected: ``out_k = Σ_{i: k ≠ win(i)} w_ik · values_i``.

    ``w_ik = exp(-|x_i - c_k|² / b)`` (Gaussian, b = 2σ², Eq. 14), or ``min(1, gain · softmax_k(-|x_i - c_k|² / b))``
    (softmax; the published code has gain 0.01·K).

    The one primitive behind NS-VQ's literal forms: with values ``[x, 1]`` it yields the kernel-weighted sums and masses
    of its codebook update, with values the decoder's gradient it yields the ΔE variant.

    Returns the selected codes ``(n,)`` and the transferred values ``(k, v)``; no gradient flows through either.
    """
    one_of("kernel", kernel, KERNELS)
    x_nd, codebook_kd, values_nv = x_nd.detach(), codebook_kd.detach(), values_nv.detach()
    return _kernel_transfer_op(x_nd, codebook_kd, values_nv, kernel, bandwidth, gain)


@operator(
    "kernel_transfer",
    lambda x_nd, codes_kd, values_nv, *_: (index_like(x_nd), values_nv.new_empty(len(codes_kd), values_nv.shape[1])),
)
def _kernel_transfer_op(
    x_nd: Tensor, codebook_kd: Tensor, values_nv: Tensor, kernel: str, bandwidth: Tensor, gain: float
) -> tuple[Tensor, Tensor]:
    codes = len(codebook_kd)
    transferred_vk = values_nv.new_zeros(values_nv.shape[1], codes)
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    origin_d = codebook_kd.mean(dim=0)
    x_nd, codebook_kd = x_nd - origin_d, codebook_kd - origin_d
    # Factors whose product is -|x - c|² / bandwidth, so that one matmul gives the exponents: of a Gaussian those of 2,
    # whose powers cost less.
    unit = math.log(2) if kernel == "gaussian" else 1.0
    squares_n1, squares_k1 = (t.square().sum(dim=1, keepdim=True) for t in (x_nd, codebook_kd))
    scaled_nv = torch.cat([2 * x_nd, -squares_n1, -torch.ones_like(squares_n1)], dim=1) / (bandwidth * unit)
    lifted_kv = torch.cat([codebook_kd, torch.ones_like(squares_k1), squares_k1], dim=1)
    indices_n = torch.empty(len(x_nd), dtype=torch.int64, device=x_nd.device)
    # Exponentials below the smallest normal number would slow everything down several times.
    lowest = 0.8 * math.log(torch.finfo(x_nd.dtype).tiny) / unit
    for rows in row_blocks(len(x_nd), codes, x_nd.device):
        logits_bk = product(scaled_nv[rows], lifted_kv)
        highest(logits_bk, out=indices_n[rows])
        if kernel == "gaussian":
            weights_bk = F.threshold(logits_bk, lowest, -torch.inf, inplace=True).exp2_()
        else:
            highest_b1 = logits_bk.gather(1, indices_n[rows, None])
            torch.maximum(logits_bk, highest_b1 + lowest, out=logits_bk)
            weights_bk = torch.softmax(logits_bk, dim=1, out=logits_bk)
            if gain != 1.0:
                weights_bk.mul_(gain).clamp_(max=1)
        weights_bk.scatter_(1, indices_n[rows, None], 0)
        transferred_vk += product(values_nv[rows].t(), weights_bk.t())
    return indices_n, transferred_vk.t().contiguous()


def masked_mse(a_nd: Tensor, b_nd: Tensor, valid_n: Tensor | None = None) -> Tensor:
    """``mean (a - b)²`` over the valid rows; 0 when there are none."""
    if valid_n is None and a_nd.numel() > 0:
        return F.mse_loss(a_nd, b_nd)
    squares_nd = (a_nd - b_nd).square()
    if valid_n is None:
        return squares_nd.sum()
    kept = torch.where(valid_n[:, None], squares_nd, 0).sum()
    return kept / (valid_n.sum().clamp(min=1) * a_nd.shape[1])


def orthogonal_loss(codebook_kd: Tensor) -> Tensor:
    """``(|ĈĈᵀ|² - K) / K²`` with unit-length codes: 0 when all codes are orthogonal.

    ``|ĈĈᵀ|_F = |ĈᵀĈ|_F``, so the d × d product is enough and K × K is never built.
    """
    codes = codebook_kd.shape[0]
    unit_kd = F.normalize(codebook_kd, dim=1)
    return ((unit_kd.t() @ unit_kd).square().sum() - codes) / codes**2


def kernel_codebook_loss(
    x_nd: Tensor, codebook_kd: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float = 1, valid_n: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The embedding loss of NS-VQ, whose gradient also moves the codes that were not selected.

    ``L = 1/(ND) · Σ_i [ |sg x_i - c_win|² + Σ_{k≠win} sg(w_ik) |sg x_i - c_k|² ]``

    Its gradient has a closed form, ``2/(ND) · (diag(Wᵀ1) C - Wᵀ X)`` with a weight of 1 for winners, computed block by
    block in the forward pass; autograd keeps K × D numbers and nothing else. ``kernel``, ``bandwidth`` and ``gain`` are
    those of :func:`driftvq.functional.kernel_transfer`. Returns the loss and the selected codes ``(n,)``.
    """
    x_nd, codes_kd = x_nd.detach(), codebook_kd.detach()
    origin_d = codes_kd.mean(dim=0)
    near_nd, centred_kd = x_nd - origin_d, codes_kd - origin_d
    valid_n1 = x_nd.new_ones(len(x_nd), 1) if valid_n is None else valid_n[:, None].to(x_nd.dtype)
    indices_n, mass_k, sums_kd, squares_k = kernel_moments(near_nd, centred_kd, kernel, bandwidth, gain, valid_n1)
    scale = 1 / (valid_n1.sum().clamp(min=1) * x_nd.shape[1])
    others = squares_k.sum() - (2 * sums_kd - mass_k[:, None] * centred_kd).mul(centred_kd).sum()
    gradient_kd = (mass_k[:, None] * centred_kd - sums_kd) * (2 * scale)
    # Zero in value, the closed form in gradient.
    others = (others * scale).clamp(min=0) + (gradient_kd * (codebook_kd - codes_kd)).sum()
    winners = masked_mse(x_nd, F.embedding(indices_n, codebook_kd), valid_n)
    return winners + others, indices_n


def kernel_moments(
    x_nd: Tensor, codebook_kd: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float, weight_n1: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Selected codes ``(n,)``; what each code received as a non-winner: mass, sum of latents, sum of their squares."""
    squares_n1 = x_nd.square().sum(dim=1, keepdim=True)
    values_nv = torch.cat([x_nd, torch.ones_like(squares_n1), squares_n1], dim=1) * weight_n1
    indices_n, moments_kv = kernel_transfer(x_nd, codebook_kd, values_nv, kernel, bandwidth, gain)
    return indices_n, moments_kv[:, -2], moments_kv[:, :-2], moments_kv[:, -1]


def straight_through(z_nd: Tensor, codes_nd: Tensor) -> Tensor:
    """``z + sg(c - z)``: the gradient reaches the encoder unchanged and the codes not at all."""
    return codes_nd.detach() + _zero(z_nd)


def modified_straight_through(z_nd: Tensor, codes_nd: Tensor, divisor: float | Tensor | None = None) -> Tensor:
    """``z + sg(c - z) + 2/d · (c - sg c)`` (Eq. 18, A21): the winning code receives 2/d of the gradient as well.

    The divisor d is the number of latents by default, as in the paper (the published code has latents × dimensions).
    """
    d = max(z_nd.shape[0], 1) if divisor is None else divisor
    return straight_through(z_nd, codes_nd) + _zero(codes_nd) * (2 / d)


SHORT = 1e-3  # of its code's length: less of a latent has no direction


def rotate(z_nd: Tensor, codes_nd: Tensor) -> Tensor:
    """The rotation trick: ``c = sg(λR) z``, so the encoder's gradient is turned and scaled as z was to reach c.

    ``R = I - 2 r rᵀ + 2 ĉ ẑᵀ`` with ``r ∝ ẑ + ĉ`` rotates ẑ to ĉ; ``λ = |c| / |z|``. (Fifty et al., 2024.)

    A latent that is next to nothing beside its code, such as what a residual leaves of one that was a code, has no
    direction to turn and a λ without bound: the gradient reaches it unchanged.
    """
    z, c, eps = z_nd.detach(), codes_nd.detach(), torch.finfo(z_nd.dtype).tiny ** 0.5
    z_norm, c_norm = z.norm(dim=1, keepdim=True).clamp(min=eps), c.norm(dim=1, keepdim=True)
    z_unit, c_unit = z / z_norm, c / c_norm.clamp(min=eps)
    r = F.normalize(z_unit + c_unit, dim=1, eps=eps)
    change = _zero(z_nd)
    along_r, along_z = ((change * axis).sum(dim=1, keepdim=True) for axis in (r, z_unit))
    turned = (change - 2 * along_r * r + 2 * along_z * c_unit) * (c_norm / z_norm)
    rotated: Tensor = c + torch.where(z_norm > SHORT * c_norm, turned, change)
    return rotated


def directional(z_nd: Tensor, codes_nd: Tensor, noise_nd: Tensor) -> Tensor:
    """``z + |c - z| · sg(v/|v|)`` with ``v = c - z + noise`` (DiVeQ): a step towards the code, of the right length.

    Differentiable in the latent and in the code, through the length. Without noise the value is the code up to
    rounding; with noise it lies on the sphere about z that goes through the code.
    """
    away_nd, tiny = codes_nd - z_nd, torch.finfo(z_nd.dtype).tiny
    direction_nd = F.normalize(away_nd.detach() + noise_nd, dim=1, eps=tiny**0.5)
    return z_nd + away_nd.square().sum(dim=1, keepdim=True).clamp(min=tiny).sqrt() * direction_nd


def spread_gradient(z_nd: Tensor, codebook_kd: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float = 1.0) -> Tensor:
    """The ΔE term ``Σ_{k≠win} (w_k c_k - sg(w_k c_k))`` (Suppl. 10, A14): zero, with a gradient for the other codes.

    Added to an estimator's output, it hands code k the gradient ``Σ_i w_ik g_i``. The weights are constants, as in the
    kernel loss. Nothing of size n × k is kept: the weights are computed again in the backward pass.
    """
    return _spread_op(z_nd.detach(), codebook_kd, kernel, bandwidth, gain)


def _spread_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    z_nd, codebook_kd, ctx.kernel, bandwidth, ctx.gain = inputs
    # Before the backward pass the bandwidth may decay in place, and the start write into the codes.
    ctx.save_for_backward(z_nd, codebook_kd.clone(), bandwidth.clone())


def _spread_backward(ctx, grad_nd):  # type: ignore[no-untyped-def]
    z_nd, codebook_kd, bandwidth = ctx.saved_tensors
    _, grad_kd = kernel_transfer(z_nd, codebook_kd, grad_nd.contiguous(), ctx.kernel, bandwidth, ctx.gain)
    return None, grad_kd, None, None, None


@operator("spread_gradient", lambda z_nd, *rest: torch.empty_like(z_nd), _spread_backward, _spread_setup)
def _spread_op(z_nd: Tensor, codebook_kd: Tensor, kernel: str, bandwidth: Tensor, gain: float) -> Tensor:
    return torch.zeros_like(z_nd)


def _zero(x: Tensor) -> Tensor:
    """Zero in value, the identity in gradient."""
    return x - x.detach()
