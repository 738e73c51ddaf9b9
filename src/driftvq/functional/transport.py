"""Optimal transport between latents and codes: between their Gaussians in closed form, and balanced by prices."""

from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.functional.blocks import near, operator, product, row_blocks, widest_float


class Gaussian(NamedTuple):
    """Mean ``(d,)`` and covariance ``(d, d)``."""

    mean: Tensor
    covariance: Tensor


def moments(x_nd: Tensor, weight_n: Tensor, origin_d: Tensor) -> Tensor:
    """``Σ_i w_i [1, x_i - o][1, x_i - o]ᵀ``, ``(1 + d, 1 + d)``: all that :func:`gaussian` needs; adds up over batches.

    The origin o is near the vectors: what is subtracted first costs no precision.
    """
    x_nd = (x_nd - origin_d).to(widest_float(x_nd.device))
    with_one = torch.cat([x_nd.new_ones(len(x_nd), 1), x_nd], dim=1)
    return (with_one * weight_n.to(x_nd.dtype)[:, None]).t() @ with_one


def gaussian(summed: Tensor, origin_d: Tensor) -> Gaussian:
    """The Gaussian with the mean and covariance of vectors of which the :func:`moments` are given."""
    scaled = summed / summed[0, 0].clamp(min=torch.finfo(summed.dtype).tiny)
    offset_d = scaled[0, 1:]
    return Gaussian(origin_d.to(summed.dtype) + offset_d, scaled[1:, 1:] - torch.outer(offset_d, offset_d))


def gaussian_transport(source: Gaussian, target: Gaussian) -> tuple[Tensor, Tensor]:
    """The squared Wasserstein distance of two Gaussians, and the matrix of the map that carries one to the other.

    ``W² = |μ - ν|² + tr(Σ + T - 2 (Σ^½ T Σ^½)^½)``,  ``x ↦ ν + A (x - μ)`` with ``A = Σ^-½ (Σ^½ T Σ^½)^½ Σ^-½``

    Directions in which the source has no extent are left out: nothing can be carried along them. Returns W² and A.
    """
    root_dd, inverse_root_dd = _roots(source.covariance)
    middle_dd, _ = _roots(root_dd @ target.covariance @ root_dd)
    spread = (source.covariance + target.covariance - 2 * middle_dd).diagonal().sum()
    distance = (source.mean - target.mean).square().sum() + spread.clamp(min=0)
    return distance, inverse_root_dd @ middle_dd @ inverse_root_dd


def _roots(matrix_dd: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of a symmetric matrix and its inverse, or pseudoinverse where it is singular."""
    values_d, vectors_dd = torch.linalg.eigh(near(matrix_dd))
    floor = values_d.amax().clamp(min=0) * len(values_d) * torch.finfo(values_d.dtype).eps
    root_d = values_d.clamp(min=0).sqrt()
    inverse_d = torch.where(values_d > floor, root_d, torch.inf).reciprocal()
    root_dd, inverse_dd = (vectors_dd * scale_d @ vectors_dd.t() for scale_d in (root_d, inverse_d))
    return root_dd.to(matrix_dd.device), inverse_dd.to(matrix_dd.device)


def wasserstein_loss(codebook_kd: Tensor, target: Gaussian) -> Tensor:
    """``W²`` between the Gaussian of the codes and a fixed one.

    Its gradient is known without differentiating matrix roots: ``2/k · (c - (ν + A (c - μ)))``, each code's way to
    where the optimal map would carry it.
    """
    codes_kd = codebook_kd.detach()
    origin_d = codes_kd.mean(dim=0)
    source = gaussian(moments(codes_kd, codes_kd.new_ones(len(codes_kd)), origin_d), origin_d)
    distance, map_dd = gaussian_transport(source, target)
    away_kd = (codes_kd - source.mean.to(codes_kd.dtype)).to(map_dd.dtype)
    carried_kd = target.mean + away_kd @ map_dd.t()
    gradient_kd = (codes_kd - carried_kd).to(codes_kd.dtype) * (2 / len(codes_kd))
    # Zero in value, the closed form in gradient.
    return distance.to(codes_kd.dtype) + (gradient_kd * (codebook_kd - codes_kd)).sum()


def distance_spread(latents: Tensor, codes: Tensor) -> Tensor:
    """The standard deviation of ``|z_i - c_k|²`` over all pairs of latents and codes, without forming them.

    ``|z - c|² = a + b - 2 z·c``, so five means are enough: of a² and b², ``E[a z]``, ``E[b c]``, and ``E[(z·c)²] =
    tr(E[zzᵀ] E[ccᵀ])``. They come from the :func:`square_moments` of both about one origin. Where all distances are
    equal it is as small as rounding can tell, and 1 where they are 0, so that one may divide by it.
    """
    z, c = (summed / summed[0, 0].clamp(min=torch.finfo(summed.dtype).tiny) for summed in (latents, codes))
    (z_mean, z_square, z_long, z_pairs), (c_mean, c_square, c_long, c_pairs) = (
        (means[0, 1:-1], means[-1, -1], means[-1, 1:-1], means[1:-1, 1:-1]) for means in (z, c)
    )
    z_norm, c_norm = z_pairs.diagonal().sum(), c_pairs.diagonal().sum()
    second = z_square + c_square + 2 * z_norm * c_norm + 4 * (z_pairs * c_pairs).sum()
    second = second - 4 * (z_long @ c_mean + c_long @ z_mean)
    first = z_norm + c_norm - 2 * z_mean @ c_mean
    variance = torch.maximum(second - first.square(), first.square() * torch.finfo(first.dtype).eps)
    return torch.where(variance > 0, variance, 1).sqrt()


def square_moments(x_nd: Tensor, weight_n: Tensor, origin_d: Tensor) -> Tensor:
    """``Σ_i w_i [1, y, |y|²][1, y, |y|²]ᵀ`` of ``y = x - origin``, ``(2 + d, 2 + d)``; adds up over batches."""
    squares_n1 = (x_nd - origin_d).square().sum(dim=1, keepdim=True)
    return moments(torch.cat([x_nd, squares_n1], dim=1), weight_n, torch.cat([origin_d, origin_d.new_zeros(1)]))


def mean_assignment(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, share_n: Tensor) -> Tensor:
    """``Σ_i share_i softmax_k(z_i·w_k + b_k)``, ``(k,)``, in blocks; no gradient flows.

    Half an iteration of Sinkhorn's algorithm: with ``b ← b - log`` of it, all codes are asked for equally.
    """
    return _mean_assignment_op(z_nd.detach(), weight_kd.detach(), bias_k.detach(), share_n.detach())


@operator("mean_assignment", lambda z_nd, weight_kd, bias_k, share_n: torch.empty_like(bias_k))
def _mean_assignment_op(z_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, share_n: Tensor) -> Tensor:
    mean_k, codes = torch.zeros_like(bias_k), len(weight_kd)
    for rows in row_blocks(len(z_nd), codes, z_nd.device):
        logits_bk = product(z_nd[rows], weight_kd, bias_k)
        mean_k.addmv_(torch.softmax(logits_bk, dim=1, out=logits_bk).t(), share_n[rows])
    return mean_k
