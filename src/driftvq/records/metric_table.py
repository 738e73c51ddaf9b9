"""What the numbers are called, which way is better, and how they are written."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

Better = Literal["lower", "higher"]


class Metric(NamedTuple):
    """A measure of quality.

    Attributes:
        label: its name for readers.
        better: the good direction; None if it is not known, and then no value is the best.
        decimals: digits after the point; None for three significant ones of a typical value.
        percent: whether it is a share that is written as a percentage.
        meaning: one line.
    """

    label: str
    better: Better | None
    decimals: int | None = None
    percent: bool = False
    meaning: str = ""


METRICS = {
    "rfid": Metric("rFID", "lower", 2, meaning="Fréchet distance between features of images and reconstructions"),
    "kid": Metric("KID", "lower", meaning="kernel distance between the same features, unbiased for few images"),
    "lpips_alex": Metric("LPIPS", "lower", meaning="perceptual distance to the original, AlexNet"),
    "lpips_vgg": Metric("LPIPS (VGG)", "lower", meaning="perceptual distance to the original, VGG"),
    "ssim": Metric("SSIM", "higher", 3, meaning="structural similarity to the original"),
    "ms_ssim": Metric("MS-SSIM", "higher", 3, meaning="structural similarity at several scales"),
    "psnr": Metric("PSNR (dB)", "higher", 2, meaning="peak signal-to-noise ratio"),
    "usage": Metric("Usage", "higher", 1, True, meaning="share of the codes that the evaluation images select"),
    "perplexity": Metric("Perplexity", "higher", 0, meaning="equally used codes that would carry as much information"),
}

DRIFT = {
    "latents_moved": "How far the latents moved, in units of their spread",
    "cells_changed": "Share of latents that got another code",
    "follow_unselected": "How much of the drift unselected codes follow (1: all)",
    "follow_selected": "How much of the drift selected codes follow (1: all)",
    "codes_moved_unselected": "How far unselected codes moved, in units of the latents' spread",
    "codes_moved_selected": "How far selected codes moved, in units of the latents' spread",
    "older_than_1000": "Share of codes not selected for 1,000 steps",
    "quantization_error": "Quantization error, as a share of the latents' variance",
    "latents_moved_by_distance": "How far the latents moved, in distances to their code",
    "translation_share": "Share of the drift that is a common translation",
    "affine_share": "Share of the drift that is an affine map",
    "cells_changed_by_latents": "Share of latents with another code, had only latents moved",
    "cells_changed_by_codes": "Share of latents with another code, had only codes moved",
    "latent_spread": "Spread of the latents",
    "winning_distance": "Distance of the latents to their code",
    "usage": "Share of the codes that the probe selects",
    "perplexity": "Perplexity of the codes on the probe",
    "recent_usage": "Share of the codes selected in the last 100 steps",
    "age_median": "Steps since a code was last selected, median",
    "age_p90": "Steps since a code was last selected, 90th percentile",
    "age_max": "Steps since a code was last selected, longest",
    "interval": "Steps between readings",
}
"""Readings of the drift meter in plain words, those that tell most first."""

GROUP_LABELS = {"ours": "ours", "paper": "paper's form", "peer": "peer", "reference": "reference"}


def metric(name: str) -> Metric:
    """A metric by name; one that is not known keeps its name and has no direction."""
    known = METRICS.get(name)
    if known is not None:
        return known
    return Metric(name, "lower") if name.startswith("lpips") else Metric(name, None)


def plain_label(name: str) -> str:
    """A metric's name as a sentence uses it."""
    label = metric(name).label.removesuffix(" (dB)")
    return label.lower() if label in ("Usage", "Perplexity") else label


def drift_label(key: str) -> str:
    """A reading of the drift meter in plain words; one that is not known is spelled out."""
    name = key.removeprefix("drift/")
    return DRIFT.get(name, name.replace("_", " "))


def decimals(name: str, values: Sequence[float]) -> int:
    """Digits after the point of a column: as the metric says, or three significant ones of the typical value."""
    fixed = metric(name).decimals
    if fixed is not None:
        return fixed
    sizes = sorted(abs(value) for value in values if value and math.isfinite(value))
    return min(max(2 - math.floor(math.log10(sizes[len(sizes) // 2])), 0), 8) if sizes else 2


def written(name: str, value: float, digits: int) -> str:
    """A value as readers see it."""
    return f"{100 * value:.{digits}f}%" if metric(name).percent else f"{value:.{digits}f}"


def written_spread(name: str, spread: float, digits: int) -> str:
    """A spread as readers see it, with up to two more digits if it would look like none."""
    shown = spread * (100 if metric(name).percent else 1)
    needed = next((n for n in range(digits, digits + 3) if float(f"{shown:.{n}f}") > 0), digits)
    return written(name, spread, needed)


def written_p(p: float) -> str:
    """A p-value as readers see it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
