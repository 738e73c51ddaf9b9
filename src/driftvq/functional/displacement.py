"""How far latents have moved away from their codes, as a field that says how far every code has to move.

The paper's Eq. 12, ``ΔE(x_j) ≈ K(x_j, X) K(X, X)⁻¹ ΔE(X)``, for the kernel ``K(x, y) = f(x)·f(y)`` and in its primal
form: the displacements of the latents from their codes are regressed on features f of those codes, and the fit says how
far a code without latents has to move.

Shape suffixes: n latents, r rows, f fields, p features, d dimensions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.functional.blocks import near


def field_moments(features_rp: Tensor, moved_rd: Tensor, count_r: Tensor) -> Tensor:
    """``Σ_i f_i [f_i, Δ_i]ᵀ`` over latents i, ``(p, p + d)``: all that a fit needs; it adds up over processes.

    A row may stand for a group of ``count`` latents that share their features; their Δ are then summed.
    """
    return features_rp.t() @ torch.cat([features_rp * count_r[:, None], moved_rd], dim=1)


def fit_field(moments: Tensor, ridge_pp: Tensor) -> Tensor:
    """``W = (A + A₁₁ R)⁻¹ B`` of :func:`field_moments` ``[A, B]``: the field is ``f(c) W``, ``(p, d)``.

    The first feature is 1, so that A₁₁ counts the latents. R is diagonal; directions in which the features vary less
    than it stay out.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    lifted_pp = torch.addcmul(gram_pp, ridge_pp, gram_pp[0, 0])
    # Not `cholesky`, which waits for the device to say whether it succeeded.
    factor_pp = torch.linalg.cholesky_ex(near(lifted_pp)).L
    field_pd = torch.cholesky_solve(near(joint_pd), factor_pp).to(moments.device)
    return torch.nan_to_num(field_pd, nan=0, posinf=0, neginf=0)  # moments that have lost all digits say nothing


def field_agreement(fields_fpd: Tensor, moments: Tensor) -> Tensor:
    """``Σ_i w_i |u_i|²`` and ``Σ_i w_i u_i·Δ_i`` of fields u over the latents whose moments are given: ``(f, 2)``.

    For a field that was fitted to earlier batches, the errors of these latents are independent of it, so the product is
    free of them, however the latents of one batch depend on each other.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    shown_f2pd = torch.stack([gram_pp @ fields_fpd, joint_pd.expand_as(fields_fpd)], dim=1)
    return (shown_f2pd.flatten(2) @ fields_fpd.flatten(1)[:, :, None]).squeeze(2)


class DriftMoments(NamedTuple):
    """Sums over latents from which a drift is fitted; they add up over processes. ``latents`` is their number."""

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

    Along each principal direction of the codes the fit is shrunk by ``max(0, 1 - noise/signal)``, so that directions
    about which the batch says nothing stay out.
    """
    dim = moments.codes.shape[0]
    count = moments.latents.clamp(min=1)
    origin, shift = moments.codes / count, moments.moved / count
    spread_dd = moments.codes_codes / count - torch.outer(origin, origin)
    joint_dd = moments.codes_moved / count - torch.outer(origin, shift)
    variance = (moments.moved_squared / count - shift.square().sum()).clamp(min=0)

    scale_d, directions_dd = (found.to(spread_dd.device) for found in torch.linalg.eigh(near(spread_dd)))
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
