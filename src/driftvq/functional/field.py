"""A field of displacements over features of the codes: fitted to what a batch shows, applied to every code.

The paper's Eq. 12, ``ΔE(x_j) ≈ K(x_j, X) K(X, X)⁻¹ ΔE(X)``, for the kernel ``K(x, y) = f(x)·f(y)`` and in its primal
form: the displacements of the latents from their codes are regressed on features f of those codes, and the fit says how
far a code without latents has to move.

Shape suffixes: n latents, p features, d dimensions.
"""

import torch
from torch import Tensor

SOLVERS = ("cpu", "cuda")
"""Devices that factorise matrices; for others the CPU does."""


def field_moments(features_np: Tensor, moved_nd: Tensor, weight_n: Tensor) -> Tensor:
    """``Σ_i w_i f_i [f_i, Δ_i]ᵀ``, ``(p, p + d)``: all that a fit needs of a batch; it adds up over processes."""
    return (features_np * weight_n[:, None]).t() @ torch.cat([features_np, moved_nd], dim=1)


def fit_field(moments: Tensor, ridge: float = 0.1) -> Tensor:
    """``W = (A + λ · mean diag A)⁻¹ B`` of moments ``[A, B]``: the field is ``f(c) W``, ``(p, d)``.

    Args:
        moments: see :func:`field_moments`, of one batch or summed over several.
        ridge: λ; directions in which the features hardly vary stay out.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    level = gram_pp.diagonal().mean().clamp(min=torch.finfo(moments.dtype).tiny ** 0.5)
    near = moments.device if moments.device.type in SOLVERS else torch.device("cpu")
    lifted_pp = (gram_pp + (ridge * level) * torch.eye(features, dtype=moments.dtype, device=moments.device)).to(near)
    # Not `cholesky`, which waits for the device to say whether it succeeded.
    factor_pp = torch.linalg.cholesky_ex(lifted_pp).L
    return torch.cholesky_solve(joint_pd.to(near), factor_pp).to(moments.device)


def field_agreement(field_pd: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """``Σ_i w_i |u_i|²`` and ``Σ_i w_i u_i·Δ_i`` of a field u over the latents of a batch, whose moments are given.

    For a field that was fitted to earlier batches, the errors of these latents are independent of it, so the product is
    free of them, however the latents of one batch depend on each other.
    """
    features = moments.shape[0]
    gram_pp, joint_pd = moments.split([features, moments.shape[1] - features], dim=1)
    return (field_pd * (gram_pp @ field_pd)).sum(), (field_pd * joint_pd).sum()
