"""Gradient estimators: ways to pass the decoder's gradient through the choice of a code.

Every estimator returns exactly the selected codes, but for :func:`directional`; they differ in the gradient alone.

Shape suffixes: n latents, k codes, d dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import operator
from driftvq.functional.losses import Kernel, kernel_transfer


def straight_through(z_nd: Tensor, codes_nd: Tensor) -> Tensor:
    """``z + sg(c - z)``: the gradient reaches the encoder unchanged and the codes not at all."""
    return codes_nd.detach() + _zero(z_nd)


def modified_straight_through(z_nd: Tensor, codes_nd: Tensor, divisor: float | Tensor | None = None) -> Tensor:
    """``z + sg(c - z) + 2/d · (c - sg c)`` (Eq. 18, A21): the winning code receives 2/d of the gradient as well.

    The divisor d is the number of latents by default, as in the paper (the published code has latents × dimensions).
    """
    d = max(z_nd.shape[0], 1) if divisor is None else divisor
    return straight_through(z_nd, codes_nd) + _zero(codes_nd) * (2 / d)


def rotate(z_nd: Tensor, codes_nd: Tensor) -> Tensor:
    """The rotation trick: ``c = sg(λR) z``, so the encoder's gradient is turned and scaled as z was to reach c.

    ``R = I - 2 r rᵀ + 2 ĉ ẑᵀ`` with ``r ∝ ẑ + ĉ`` rotates ẑ to ĉ; ``λ = |c| / |z|``. (Fifty et al., 2024.)
    """
    z, c, eps = z_nd.detach(), codes_nd.detach(), torch.finfo(z_nd.dtype).tiny ** 0.5
    z_norm, c_norm = z.norm(dim=1, keepdim=True).clamp(min=eps), c.norm(dim=1, keepdim=True)
    z_unit, c_unit = z / z_norm, c / c_norm.clamp(min=eps)
    r = F.normalize(z_unit + c_unit, dim=1, eps=eps)
    change = _zero(z_nd)
    turned: Tensor = (
        change - 2 * (change * r).sum(dim=1, keepdim=True) * r + 2 * (change * z_unit).sum(dim=1, keepdim=True) * c_unit
    )
    rotated: Tensor = c + turned * (c_norm / z_norm)
    return rotated


def directional(z_nd: Tensor, codes_nd: Tensor, noise_nd: Tensor) -> Tensor:
    """``z + |c - z| · sg(v/|v|)`` with ``v = c - z + noise`` (DiVeQ): a step towards the code, of the right length.

    Differentiable in the latent and in the code, through the length. Without noise the value is the code up to
    rounding; with noise it lies on the sphere about z that goes through the code.
    """
    away_nd = codes_nd - z_nd
    tiny = torch.finfo(z_nd.dtype).tiny
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
