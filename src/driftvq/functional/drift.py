"""How far the latents have moved away from their codes, as a field that can be applied to every code.

Shape suffixes: n latents, d dimensions.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
    and what they would explain of pure noise. ``precision`` ``(d, d)`` is the inverse covariance of the codes.
    """

    origin: Tensor
    shift: Tensor
    linear: Tensor
    precision: Tensor
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
    origin, (shift, joint_dd) = moments.codes / count, _shift_and_covariance(moments)
    spread_dd = moments.codes_codes / count - torch.outer(origin, origin)
    variance = (moments.moved_squared / count - shift.square().sum()).clamp(min=0)

    scale_d, directions_dd = torch.linalg.eigh(spread_dd)
    tiny = torch.finfo(scale_d.dtype).tiny
    along_dd = directions_dd.t() @ joint_dd
    usable_d = scale_d > scale_d[-1].clamp(min=tiny) * torch.finfo(scale_d.dtype).eps * dim
    explained_d = torch.where(usable_d, along_dd.square().sum(dim=1) / scale_d.clamp(min=tiny), 0)

    free = (count - dim - 1).clamp(min=1)
    enough = count > 2 * (dim + 1)
    residual = (variance - explained_d.sum()).clamp(min=0) * count / free
    noise = torch.where(enough, residual, variance) / count
    kept_d = torch.where(enough & usable_d, (1 - noise / explained_d.clamp(min=tiny)).clamp(min=0), 0)
    inverse_d = torch.where(enough & usable_d, 1 / scale_d.clamp(min=tiny), 0)
    linear_dd = directions_dd @ (along_dd * (kept_d * inverse_d)[:, None])
    precision_dd = (directions_dd * inverse_d) @ directions_dd.t()

    signal = torch.stack([shift.square().sum(), torch.where(enough, explained_d.sum(), 0)])
    return Drift(origin, shift, linear_dd, precision_dd, signal, torch.stack([noise, noise * usable_d.sum()]))


def drift_agreement(drift: Drift, whole: DriftMoments, first: DriftMoments) -> Tensor:
    """How much of a drift's ``signal`` both halves of its latents agree on, ``(2,)``: their product, not a square.

    The product's mean is the square of the drift alone if the noise of one half does not depend on that of the other.
    Different images see to that, while :func:`fit_drift` takes even neighbouring patches for independent, so the noise
    that it expects is too small.
    """
    second = DriftMoments(*(both - part for both, part in zip(whole, first, strict=True)))
    (shift_1, joint_1_dd), (shift_2, joint_2_dd) = _shift_and_covariance(first), _shift_and_covariance(second)
    return torch.stack([(shift_1 * shift_2).sum(), (joint_1_dd * (drift.precision @ joint_2_dd)).sum()])


def _shift_and_covariance(moments: DriftMoments) -> tuple[Tensor, Tensor]:
    """Mean displacement ``(d,)`` and covariance of codes with displacements ``(d, d)``."""
    count = moments.latents.clamp(min=1)
    shift = moments.moved / count
    return shift, moments.codes_moved / count - torch.outer(moments.codes / count, shift)
