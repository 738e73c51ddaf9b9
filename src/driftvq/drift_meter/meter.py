"""How far the encoder moved, which cells its n latents left, and how the k codes followed, in d dimensions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from driftvq.drift_meter import NAN, DriftReading, probing
from driftvq.drift_meter.probing import Snapshot
from driftvq.functional import Metric, count_codes, nearest, perplexity, usage
from driftvq.names import positive_int
from driftvq.quantizers.quantizer import Quantizer
from driftvq.records.metric_table import expected_usage


def present(now: Snapshot) -> dict[str, float]:
    """What a snapshot says by itself: spread, distance to the codes, error, usage."""
    z_nd = now.latents.cpu().double()
    variance = (z_nd - z_nd.mean(dim=0)).square().sum(dim=1).mean()
    values = {"latent_spread": variance.sqrt()}
    if now.codebook_size > 0:
        counts_k = count_codes(now.winners, now.codebook_size)
        values |= {"usage": usage(counts_k), "perplexity": perplexity(counts_k)}
        values["usage_expected"] = torch.tensor(expected_usage(now.codebook_size, len(z_nd)), dtype=torch.double)
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
    signal, noise = affine_part(z_nd, moved_nd)
    shares = (signal - noise).clamp(min=0) / moved_squared
    values = {"latents_moved": moved / spread, "translation_share": shares[0], "affine_share": shares.sum()}
    values["cells_changed"] = changed(last.winners, now.winners)
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


def affine_part(z_nd: Tensor, moved_nd: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared movement that a common shift and a linear map explain ``(2,)``, and what they would of noise."""
    count, dim = z_nd.shape
    shift_d = moved_nd.mean(dim=0)
    centred_nd, left_nd = z_nd - z_nd.mean(dim=0), moved_nd - shift_d
    scale_d, directions_dd = torch.linalg.eigh(centred_nd.t() @ centred_nd / count)
    limits = torch.finfo(scale_d.dtype)
    usable_d = scale_d > scale_d[-1].clamp(min=limits.tiny) * limits.eps * dim
    along_dd = directions_dd.t() @ (centred_nd.t() @ left_nd) / count
    explained = (along_dd.square().sum(dim=1) / scale_d)[usable_d].sum()
    noise = left_nd.square().sum(dim=1).mean()
    if count > 2 * (dim + 1):
        noise = (noise - explained).clamp(min=0) / (count - dim - 1)
    else:  # so few latents fix no linear map
        noise, explained = noise / count, explained * 0
    return torch.stack([shift_d.square().sum(), explained]), torch.stack([noise, noise * usable_d.sum()])


def code_movement(last: Snapshot, codebook_kd: Tensor, moved_nd: Tensor, spread: Tensor) -> dict[str, Tensor]:
    """How far the codes moved and followed, those that the probe had selected and the others."""
    assert last.codebook is not None
    codes_moved_kd = codebook_kd.cpu().double() - last.codebook.cpu().double()
    nearby_kd = nearby_movement(last, moved_nd) if last.by_distance else None
    selected_k = count_codes(last.winners, last.codebook_size).cpu() > 0
    values = {}
    for name, chosen_k in (("selected", selected_k), ("unselected", ~selected_k)):
        values[f"codes_moved_{name}"] = codes_moved_kd[chosen_k].norm(dim=1).mean() / spread
        if nearby_kd is not None:  # least-squares slope through the origin; NaN if nothing is expected
            expected_kd = nearby_kd[chosen_k]
            values[f"follow_{name}"] = (expected_kd * codes_moved_kd[chosen_k]).sum() / expected_kd.square().sum()
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


class DriftMeter:
    """Measures on a fixed probe batch how the encoder drifts and how the codebook follows.

    Measuring changes nothing: not the mode, not the random generators, not a buffer.

    Args:
        encoder: maps the probe to the latents that the quantizer gets, ``(…, d)`` or ``(b, d, …)``; a module, a method
            or any function. Modules that it mentions are in evaluation mode while it runs.
        quantizer: one of this library's, anything with a ``codebook`` of shape ``(k, d)``, or None: latents only.
        probe: what the encoder takes; the same for all readings.
        codebook: the codes ``(k, d)``, or a function that gives them, if the quantizer has no such attribute.
        metric: how a quantizer of another library finds its codes: ``"l2"`` or ``"cosine"``.
        channel_first: latents are ``(b, d, …)``; by default seen from their shape.
        max_latents: look at so many positions of the probe at most, evenly spaced.
    """

    def __init__(
        self,
        encoder: Callable[[Tensor], Tensor],
        quantizer: Any,
        probe: Tensor,
        *,
        codebook: Tensor | Callable[[], Tensor] | None = None,
        metric: Metric = "l2",
        channel_first: bool | None = None,
        max_latents: int = 16384,
    ) -> None:
        self.encoder, self.quantizer, self.probe = encoder, quantizer, probe
        self.codebook, self.metric = codebook, metric
        if channel_first is None and isinstance(quantizer, Quantizer):
            channel_first = quantizer.channel_first
        elif channel_first is None and getattr(quantizer, "accept_image_fmap", False) is True:
            channel_first = True  # as vector-quantize-pytorch says it
        self.channel_first = channel_first
        self.max_latents = positive_int("max_latents", max_latents)
        self.measures = probing.describe(quantizer, codebook)  # in one sentence
        self._last: Snapshot | None = None
        self._last_step = NAN

    def measure(self) -> DriftReading:
        """Compare the model with what it was at the last reading; the first reading only says what is."""
        modules = probing.modules_of(self.encoder) + ([self.quantizer] if isinstance(self.quantizer, nn.Module) else [])
        with probing.undisturbed(modules):
            now = self._snapshot()
            if now is None:
                self._last = None
                return DriftReading()
            counted = getattr(self.quantizer, "step", None)
            step = float(counted) if isinstance(counted, Tensor) and counted.numel() == 1 else NAN
            started = probing.has_started(self.quantizer, now)
            values = present(now if started else probing.bare_snapshot(now.latents)) | self._ages()
            if self._last is not None and self._last.is_comparable(now):
                values |= movement(self._last.to(now.latents.device), now)
                values["interval"] = step - self._last_step
            self._last, self._last_step = now if started else None, step
        return DriftReading(**values)

    @property
    def counts(self) -> Tensor | None:
        """How often the probe selected each code at the last reading, ``(k,)``."""
        return None if self._last is None else count_codes(self._last.winners, self._last.codebook_size)

    def state_dict(self) -> dict[str, Any]:
        """The last reading's latents and codes, to go on from in another process."""
        return {} if self._last is None else self._last.to("cpu")._asdict() | {"step": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; it is not used if the probe or the codebook then have another shape."""
        self._last_step = state.get("step", NAN)
        self._last = Snapshot(**{name: state[name] for name in Snapshot._fields}) if state else None

    def _snapshot(self) -> Snapshot | None:
        """The present, or None while the latents are not finite."""
        latents = self.encoder(self.probe).detach()
        if not latents.isfinite().all():
            return None
        latents = latents.to(torch.promote_types(latents.dtype, torch.float32), copy=True)
        with torch.autocast(latents.device.type, enabled=False):
            if self.codebook is None and self.quantizer is None:
                dim = latents.shape[1 if self.channel_first else -1]
                return probing.bare_snapshot(self._rows(latents, dim))
            if self.codebook is None and isinstance(self.quantizer, Quantizer):
                return probing.own_snapshot(self.quantizer, self._rows(latents, self.quantizer.dim))
            codebook_kd = probing.codebook_of(self.quantizer, self.codebook)
            return probing.distance_snapshot(self._rows(latents, codebook_kd.shape[1]), codebook_kd, self.metric)

    def _rows(self, latents: Tensor, dim: int) -> Tensor:
        x_nd = probing.rows(latents, dim, self.channel_first)
        if len(x_nd) <= self.max_latents:
            return x_nd
        return x_nd[torch.linspace(0, len(x_nd) - 1, self.max_latents, device=x_nd.device).long()]

    def _ages(self) -> dict[str, float]:
        parts = probing.parts_of(self.quantizer)
        if not parts or self.quantizer.step == 0:
            return {}
        age = torch.cat([part.code_age for part in parts]).cpu().double()
        median, p90 = age.quantile(torch.tensor([0.5, 0.9], dtype=torch.double)).tolist()
        usage = {"older_than_1000": (age >= 1000).double().mean().item(), "recent_usage": self.quantizer.recent_usage()}
        return {"age_median": median, "age_p90": p90, "age_max": age.max().item(), **usage}
