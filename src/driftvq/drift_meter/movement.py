"""What two snapshots of a model say: how it is, and what moved.

Shape suffixes: n latents of the probe, k codes, d dimensions.
"""

import torch
from torch import Tensor

from driftvq.drift_meter.probing import Snapshot
from driftvq.functional import count_codes, drift_moments, fit_drift, nearest, perplexity, usage


def present(now: Snapshot) -> dict[str, float]:
    """What a snapshot says by itself: spread, distance to the codes, error, usage."""
    z_nd = now.latents.cpu().double()
    variance = (z_nd - z_nd.mean(dim=0)).square().sum(dim=1).mean()
    values = {"latent_spread": variance.sqrt()}
    if now.codebook_size > 0:
        counts_k = count_codes(now.winners, now.codebook_size)
        values |= {"usage": usage(counts_k), "perplexity": perplexity(counts_k)}
    if now.by_distance and now.codebook is not None:
        away_n = (z_nd - now.codebook[now.winners].cpu().double()).norm(dim=1)
        values |= {"winning_distance": away_n.mean(), "quantization_error": away_n.square().mean() / variance}
    return {name: value.item() for name, value in values.items()}


def movement(last: Snapshot, now: Snapshot) -> dict[str, float]:
    """What moved between two snapshots of the same probe and codebook size."""
    z_nd = last.latents.cpu().double()
    moved_nd = now.latents.cpu().double() - z_nd
    moved, moved_squared = moved_nd.norm(dim=1).mean(), moved_nd.square().sum(dim=1).mean()
    spread = (z_nd - z_nd.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    drift = fit_drift(drift_moments(z_nd, moved_nd, torch.ones_like(z_nd[:, 0])))
    shares = (drift.signal - drift.noise).clamp(min=0) / moved_squared
    values = {
        "latents_moved": moved / spread,
        "translation_share": shares[0],
        "affine_share": shares.sum(),
        "cells_changed": changed(last.winners, now.winners),
    }
    if last.codebook is None and last.codebook_size > 0:
        values |= {"cells_changed_by_latents": values["cells_changed"], "cells_changed_by_codes": torch.zeros(())}
    if last.codebook is not None and now.codebook is not None:
        values |= code_movement(last, now.codebook, moved_nd, spread)
        if last.by_distance:
            away_n = (z_nd - last.codebook[last.winners].cpu().double()).norm(dim=1)
            values["latents_moved_by_distance"] = moved / away_n.mean()
            values["cells_changed_by_latents"] = changed(last.winners, nearest(now.latents, last.codebook))
            values["cells_changed_by_codes"] = changed(last.winners, nearest(last.latents, now.codebook))
    return {name: value.item() for name, value in values.items()}


def code_movement(last: Snapshot, codebook_kd: Tensor, moved_nd: Tensor, spread: Tensor) -> dict[str, Tensor]:
    """How far the codes moved and followed, those that the probe had selected and the others."""
    assert last.codebook is not None
    codes_moved_kd = codebook_kd.cpu().double() - last.codebook.cpu().double()
    nearby_kd = nearby_movement(last, moved_nd) if last.by_distance else None
    selected_k = count_codes(last.winners, last.codebook_size).cpu() > 0
    values = {}
    for name, chosen_k in (("selected", selected_k), ("unselected", ~selected_k)):
        values[f"codes_moved_{name}"] = codes_moved_kd[chosen_k].norm(dim=1).mean() / spread
        if nearby_kd is not None:
            values[f"follow_{name}"] = slope(nearby_kd[chosen_k], codes_moved_kd[chosen_k])
    return values


def nearby_movement(last: Snapshot, moved_nd: Tensor) -> Tensor:
    """How far the latents near each code moved, ``(k, d)``: the mean over the cell of the latent nearest to the code.

    Eq. 12 with the simplest of kernels. An affine fit would be exact for a wider class of movements, but codes lie off
    the thin set on which latents live, and there its predictions know no bounds.
    """
    assert last.codebook is not None
    winners_n = last.winners.cpu()
    counts_k = count_codes(winners_n, last.codebook_size).clamp(min=1)
    mean_kd = moved_nd.new_zeros(last.codebook_size, moved_nd.shape[1]).index_add_(0, winners_n, moved_nd)
    mean_kd /= counts_k[:, None]
    return mean_kd[winners_n[nearest(last.codebook, last.latents).cpu()]]


def changed(before_n: Tensor, after_n: Tensor) -> Tensor:
    """Share of the latents with another code."""
    return (before_n != after_n).cpu().double().mean()


def slope(expected_kd: Tensor, actual_kd: Tensor) -> Tensor:
    """Least-squares slope through the origin of actual on expected displacements; NaN if nothing is expected."""
    return (expected_kd * actual_kd).sum() / expected_kd.square().sum()
