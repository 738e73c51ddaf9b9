"""How far latents have moved away from their codes, as a field that says how far every code has to move.

The paper's Eq. 12, ``ΔE(x_j) ≈ K(x_j, X) K(X, X)⁻¹ ΔE(X)``, for the kernel ``K(x, y) = f(x)·f(y)`` and in its primal
form: the displacements of the latents from their codes are regressed on features f of those codes, and the fit says how
far a code without latents has to move.

Shape suffixes: n latents, r rows, f fields, p features, d dimensions.
"""

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
    gram_pp, joint_pd = moments[:, : len(moments)], moments[:, len(moments) :]
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
    gram_pp, joint_pd = moments[:, : len(moments)], moments[:, len(moments) :]
    shown_f2pd = torch.stack([gram_pp @ fields_fpd, joint_pd.expand_as(fields_fpd)], dim=1)
    return (shown_f2pd.flatten(2) @ fields_fpd.flatten(1)[:, :, None]).squeeze(2)
