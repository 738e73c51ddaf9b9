"""Losses of a codebook and of an encoder; every mean runs over the valid latents only.

Shape suffixes: n latents, k codes, d dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.kernels import Kernel, kernel_transfer


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
    x_nd: Tensor,
    codebook_kd: Tensor,
    kernel: Kernel,
    bandwidth: Tensor,
    gain: float = 1.0,
    valid_n: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The embedding loss of NS-VQ, whose gradient also moves the codes that were not selected.

    ``L = 1/(ND) · Σ_i [ |sg x_i - c_win|² + Σ_{k≠win} sg(w_ik) |sg x_i - c_k|² ]``

    Its gradient has a closed form, ``2/(ND) · (diag(Wᵀ1) C - Wᵀ X)`` with a weight of 1 for winners, computed block by
    block in the forward pass; autograd keeps K × D numbers and nothing else.

    Args:
        x_nd: latents ``(n, d)``; no gradient reaches them.
        codebook_kd: codes ``(k, d)``.
        kernel, bandwidth, gain: see :func:`driftvq.functional.kernel_transfer`.
        valid_n: boolean ``(n,)``; latents where it is False do not count.

    Returns:
        The scalar loss and the selected codes ``(n,)``.

    The paper prints the second term without the square and without a stop-gradient on the weight; only this form has
    its Eq. 17 as gradient.
    """
    x_nd = x_nd.detach()
    codes_kd = codebook_kd.detach()
    origin_d = codes_kd.mean(dim=0)
    valid_n1 = _row_weights(x_nd, valid_n)
    indices_n, mass_k, sums_kd, squares_k = kernel_moments(
        x_nd - origin_d, codes_kd - origin_d, kernel, bandwidth, gain, valid_n1
    )
    scale = 1 / (valid_n1.sum().clamp(min=1) * x_nd.shape[1])
    centred_kd = codes_kd - origin_d
    others = squares_k.sum() - (2 * sums_kd - mass_k[:, None] * centred_kd).mul(centred_kd).sum()
    gradient_kd = (mass_k[:, None] * centred_kd - sums_kd) * (2 * scale)
    # Zero in value, the closed form in gradient.
    others = (others * scale).clamp(min=0) + _zero_with_gradient(codebook_kd, gradient_kd)
    winners = masked_mse(x_nd, F.embedding(indices_n, codebook_kd), valid_n)
    return winners + others, indices_n


def kernel_moments(
    x_nd: Tensor, codebook_kd: Tensor, kernel: Kernel, bandwidth: Tensor, gain: float, weight_n1: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Kernel mass, weighted sum of latents and of their squares that each code received as a non-winner.

    Returns:
        Selected codes ``(n,)``, masses ``(k,)``, sums ``(k, d)``, sums of squares ``(k,)``.
    """
    squares_n1 = x_nd.square().sum(dim=1, keepdim=True)
    values_nv = torch.cat([x_nd, torch.ones_like(squares_n1), squares_n1], dim=1) * weight_n1
    indices_n, moments_kv = kernel_transfer(x_nd, codebook_kd, values_nv, kernel, bandwidth, gain)
    return indices_n, moments_kv[:, -2], moments_kv[:, :-2], moments_kv[:, -1]


def _row_weights(x_nd: Tensor, valid_n: Tensor | None) -> Tensor:
    if valid_n is None:
        return x_nd.new_ones(len(x_nd), 1)
    return valid_n[:, None].to(x_nd.dtype)


def _zero_with_gradient(parameter_kd: Tensor, gradient_kd: Tensor) -> Tensor:
    return (gradient_kd * (parameter_kd - parameter_kd.detach())).sum()
