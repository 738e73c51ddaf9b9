"""The one table of what is measured: name, unit, which way is better, how it is written; and when codes are alive."""

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """A measure."""

    label: str
    better: Literal["lower", "higher"] | None  # None if there is no good direction, and then no value is the best
    unit: str = ""  # "dB", "bits", …; "%" for a share that is written as a percentage
    decimals: int | None = None  # digits after the point; None for three significant ones of a typical value
    meaning: str = ""

    @property
    def percent(self) -> bool:
        return self.unit == "%"

    @property
    def heading(self) -> str:
        """The label with its unit, unless that stands behind every value."""
        return f"{self.label} ({self.unit})" if self.unit and not self.percent else self.label


METRICS = {  # everything that has a name; a new metric is one more line
    "rfid": Metric("rFID", "lower", "", 2, "Fréchet distance of Inception features, reconstructions to originals"),
    "kid": Metric("KID", "lower", "", None, "kernel distance of the same features; unbiased, so better at few images"),
    "kid_std": Metric("KID, spread", "lower", "", None, "standard deviation of KID over its subsets; comes with it"),
    "lpips_alex": Metric("LPIPS", "lower", "", None, "perceptual distance of the pairs, AlexNet"),
    "lpips_vgg": Metric("LPIPS (VGG)", "lower", "", None, "perceptual distance of the pairs, VGG16; slow"),
    "ssim": Metric("SSIM", "higher", "", 3, "structural similarity of the pairs, 1 at best"),
    "ms_ssim": Metric("MS-SSIM", "higher", "", 3, "structural similarity over five scales, images of at least 176×176"),
    "psnr": Metric("PSNR", "higher", "dB", 2, "peak signal-to-noise ratio, mean over images"),
    "usage": Metric("Usage", "higher", "%", 1, "share of the codes that some latent selects"),
    "selected": Metric("Selected by these images", None, "%", 1, "share of the codes that the evaluated images select"),
    "perplexity": Metric("Perplexity", "higher", "", 0, "how many equally used codes would say as much"),
    "bits_per_image": Metric("Size", "lower", "bits", 0, "indices per image × log2 of the codebook size"),
    "loss": Metric("Loss", "lower", "", None, "reconstruction and quantizer together, as in training"),
    "relocated": Metric("Relocated", None, "", 0, "how often a lost code was moved to a latent, in all of training"),
    "drift_followed": Metric("Drift followed", None, "", 3, "share of the fitted drift that codes followed at the end"),
    "thinnest": Metric("Thinnest", None, "", None, "spread of the latents on the last principal axis over the first"),
}  # fmt: skip
# What few readers ask for: kept with each cell, and in tables of comparisons that name it.
ASIDE = ("thinnest", "bandwidth")
# What ``driftvq evaluate`` measures: of the features of all images, as a mean over images, of the selected codes.
FEATURE_METRICS = ("rfid", "kid")
MEAN_METRICS = ("lpips_alex", "lpips_vgg", "ssim", "ms_ssim", "psnr")
CODE_METRICS = ("usage", "perplexity", "bits_per_image")
MEASURED = (*FEATURE_METRICS, "kid_std", *MEAN_METRICS, *CODE_METRICS)
NEED_WEIGHTS = (*FEATURE_METRICS, "kid_std", "lpips_alex", "lpips_vgg")  # those that are networks

DRIFT = {  # readings of the drift meter in plain words, those that tell most first
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
    "perplexity": "Perplexity of the codes on the probe",
    "age_median": "Steps since a code was last selected, median",
    "age_p90": "Steps since a code was last selected, 90th percentile",
    "age_max": "Steps since a code was last selected, longest",
    "interval": "Steps between readings",
}
OWN = {  # what quantizers say of themselves while they train, in plain words
    "drift_followed": "Share of the fitted drift that codes follow",
    "relocated": "Lost codes that were moved to a latent, in all",
}

# Latents for each code that usage is counted over, where there are so many: less than one in 10²⁰ of equally likely
# codes then stays unselected. Over fewer, codes that are rarely needed look dead.
LATENTS_PER_CODE = 50
# A codebook is alive from the first share of what can be selected on, and collapsed below the second.
ALIVE, COLLAPSED = 0.8, 0.2


def expected_usage(codes: int, latents: int) -> float:
    """``1 - (1 - 1/K)ⁿ``, the share that n latents select of K equally likely codes: what usage can reach at best."""
    return -math.expm1(latents * math.log1p(-1 / codes)) if codes > 1 else 1.0


def codebook_state(usage: float, possible: float = 1.0) -> Literal["alive", "partly used", "collapsed"]:
    """Whether a codebook is alive: the one definition, by its usage and what this can reach at best."""
    share = usage / possible if possible > 0 else 1.0
    return "alive" if share >= ALIVE else "collapsed" if share < COLLAPSED else "partly used"


AT_STEP = re.compile(r"(\w+)@(\d+)")  # a metric on the way: ``usage@300`` is the usage after 300 steps


def metric(name: str) -> Metric:
    """A metric by name; one that is not known keeps its name and has no direction."""
    at = AT_STEP.fullmatch(name)
    if at:
        final = metric(at[1])
        return final._replace(label=f"{final.label} at step {at[2]}", meaning=f"{final.meaning}, after {at[2]} steps")
    return METRICS.get(name) or Metric(name, "lower" if name.startswith("lpips") else None)


def is_better(name: str, value: float, other: float) -> bool:
    """Whether a value of a metric is better than another one."""
    return value < other if metric(name).better == "lower" else value > other


def plain_label(name: str) -> str:
    """A metric's name as a sentence uses it."""
    label = metric(name).label
    return label.lower() if label in ("Usage", "Perplexity") else label


def drift_label(key: str) -> str:
    """A reading of the drift meter or of a quantizer in plain words; one that is not known is spelled out."""
    kind, _, name = key.rpartition("/")
    return (OWN if kind == "quantizer" else DRIFT).get(name, name.replace("_", " "))


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


def with_unit(name: str, value: float) -> str:
    """A value by itself, for a line of text."""
    known, text = metric(name), written(name, value, decimals(name, [value]))
    return text if known.percent or not known.unit else f"{text} {known.unit}"


def written_spread(name: str, spread: float, digits: int) -> str:
    """A spread as readers see it, with up to two more digits if it would look like none."""
    shown = spread * (100 if metric(name).percent else 1)
    needed = next((n for n in range(digits, digits + 3) if float(f"{shown:.{n}f}") > 0), digits)
    return written(name, spread, needed)


def written_p(p: float) -> str:
    """A p-value as readers see it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
