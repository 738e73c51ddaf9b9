"""How far the latents have moved away from their codes, as a field that can be applied to every code.

Shape suffixes: n latents, d dimensions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.functional.precision import FULL_PRECISION


class DriftMoments(NamedTuple):
    """Sums over latents from which a drift is fitted; they add up over processes.

    Number of latents; sums of codes ``(d,)``, of displacements ``(d,)``, of codes × codes and codes × displacements
    ``(d, d)``, and of squared displacements.
    """

    latents: Tensor
    codes: Tensor
    moved: Tensor
    codes_codes: Tensor
    codes_moved: Tensor
    moved_squared: Tensor


class Drift(NamedTuple):
    """An affine drift ``Δ(c) = shift + (c - origin) @ linear``, and how much of each part is more than noise.

    ``signal`` and ``noise`` hold the mean squared displacement that the shift and the linear part explain, ``(2,)``,
    and what they would explain of pure noise.
    """

    origin: Tensor
    shift: Tensor
    linear: Tensor
    signal: Tensor
    noise: Tensor


def drift_moments(codes_nd: Tensor, moved_nd: Tensor, weight_n: Tensor) -> DriftMoments:
    """The sums that :func:`fit_drift` needs, of latents whose codes are ``codes_nd`` and lie ``moved_nd`` away."""
    weighted_nd = codes_nd * weight_n[:, None]
    return DriftMoments(
        weight_n.sum(),
        weighted_nd.sum(dim=0),
        (moved_nd * weight_n[:, None]).sum(dim=0),
        weighted_nd.t() @ codes_nd,
        weighted_nd.t() @ moved_nd,
        (moved_nd.square().sum(dim=1) * weight_n).sum(),
    )


def fit_drift(moments: DriftMoments) -> Drift:
    """Least-squares fit of an affine drift to the displacements of the latents from their codes.

    The paper's Eq. 12, ``ΔE(x_j) ≈ K(x_j, X) K(X, X)⁻¹ ΔE(X)``, for a whole batch X and the linear kernel: what the
    latents show of the encoder's movement, predicted for the codes that no latent selected. Along each principal
    direction of the codes the fit is shrunk by ``max(0, 1 - noise/signal)``, so that directions about which the batch
    says nothing stay out.
    """
    dim = moments.codes.shape[0]
    count = moments.latents.clamp(min=1)
    origin, shift, spread_dd, joint_dd = _means_and_covariances(moments)
    variance = (moments.moved_squared / count - shift.square().sum()).clamp(min=0)

    scale_d, directions_dd = _eigh(spread_dd)
    tiny = torch.finfo(scale_d.dtype).tiny
    along_dd = directions_dd.t() @ joint_dd
    usable_d = scale_d > scale_d[-1].clamp(min=tiny) * torch.finfo(scale_d.dtype).eps * dim
    explained_d = torch.where(usable_d, along_dd.square().sum(dim=1) / scale_d.clamp(min=tiny), 0)

    free = (count - dim - 1).clamp(min=1)
    enough = count > 2 * (dim + 1)
    residual = (variance - explained_d.sum()).clamp(min=0) * count / free
    noise = torch.where(enough, residual, variance) / count
    kept_d = torch.where(enough & usable_d, (1 - noise / explained_d.clamp(min=tiny)).clamp(min=0), 0)
    linear_dd = directions_dd @ (along_dd * (kept_d / scale_d.clamp(min=tiny))[:, None])

    signal = torch.stack([shift.square().sum(), torch.where(enough, explained_d.sum(), 0)])
    return Drift(origin, shift, linear_dd, signal, torch.stack([noise, noise * usable_d.sum()]))


def _means_and_covariances(moments: DriftMoments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean code and displacement ``(d,)``, covariance of the codes and of codes with displacements ``(d, d)``."""
    count = moments.latents.clamp(min=1)
    origin, shift = moments.codes / count, moments.moved / count
    spread_dd = moments.codes_codes / count - torch.outer(origin, origin)
    return origin, shift, spread_dd, moments.codes_moved / count - torch.outer(origin, shift)


def _eigh(symmetric_dd: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors; the CPU computes them where the device cannot, as Apple's."""
    device = symmetric_dd.device
    near_dd = symmetric_dd if device.type in FULL_PRECISION else symmetric_dd.cpu()
    values_d, vectors_dd = torch.linalg.eigh(near_dd)
    return values_d.to(device), vectors_dd.to(device)
