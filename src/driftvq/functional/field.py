"""A field of displacements over features of the codes: fitted to what a batch shows, applied to every code.

The paper's Eq. 12, ``ΔE(x_j) ≈ K(x_j, X) K(X, X)⁻¹ ΔE(X)``, for the kernel ``K(x, y) = f(x)·f(y)`` and in its primal
form: the displacements of the latents from their codes are regressed on features f of those codes, and the fit says how
far a code without latents has to move.

Shape suffixes: r rows, p features, d dimensions.
"""

import torch
from torch import Tensor

SOLVERS = ("cpu", "cuda")
"""Devices that factorise matrices; for others the CPU does."""


def field_moments(features_rp: Tensor, moved_rd: Tensor, count_r: Tensor) -> Tensor:
    """``Σ_i f_i [f_i, Δ_i]ᵀ`` over latents i, ``(p, p + d)``: all that a fit needs; it adds up over processes.

    Args:
        features_rp: one row per latent, or per group of latents that share their features.
        moved_rd: the displacements Δ, summed within a group.
        count_r: latents in each group.
    """
    return features_rp.t() @ torch.cat([features_rp * count_r[:, None], moved_rd], dim=1)


def fit_field(moments: Tensor, ridge_pp: Tensor) -> Tensor:
    """``W = (A + A₁₁ R)⁻¹ B`` of moments ``[A, B]``: the field is ``f(c) W``, ``(p, d)``.

    Args:
        moments: see :func:`field_moments`, of one batch or summed over several; the first feature is 1, so that A₁₁
            counts the latents.
        ridge_pp: R, diagonal; directions in which the features vary less than it stay out.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    lifted_pp = torch.addcmul(gram_pp, ridge_pp, gram_pp[0, 0])
    near = moments.device if moments.device.type in SOLVERS else torch.device("cpu")
    # Not `cholesky`, which waits for the device to say whether it succeeded.
    factor_pp = torch.linalg.cholesky_ex(lifted_pp.to(near)).L
    return torch.cholesky_solve(joint_pd.to(near), factor_pp).to(moments.device)


def field_agreement(field_pd: Tensor, moments: Tensor) -> Tensor:
    """``Σ_i w_i |u_i|²`` and ``Σ_i w_i u_i·Δ_i`` of a field u over the latents whose moments are given: ``(2,)``.

    For a field that was fitted to earlier batches, the errors of these latents are independent of it, so the product is
    free of them, however the latents of one batch depend on each other.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    return torch.stack([gram_pp @ field_pd, joint_pd]).flatten(1) @ field_pd.flatten()
