"""How far an encoder moves and how its codebook follows: measures any model, and needs nothing of its training.

What was read can be handled without loading torch.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from driftvq.names import importer

if TYPE_CHECKING:
    from driftvq.drift_meter.meter import DriftMeter

__all__ = ["DriftMeter", "DriftReading"]

__getattr__ = importer(__name__, {"DriftMeter": "meter"})

NAN = math.nan

WORDS = {
    "latents_moved": "latents moved, in spreads",
    "affine_share": "of it, affine",
    "cells_changed": "changed cell",
    "cells_changed_by_latents": "had the codes stood still",
    "follow_selected": "selected codes follow",
    "follow_unselected": "other codes follow",
    "quantization_error": "quantization error",
    "recent_usage": "usage, last 100 steps",
    "age_p90": "age of codes, 90th pct",
}
"""The values to look at first, and what they are called on a screen."""


@dataclass(frozen=True)
class DriftReading:
    """What changed between two readings, then what is; NaN where there is nothing to compare or to measure.

    With latents z → z', codes c → c', ``w`` a latent's code and ``spread = √mean|z - mean z|²``, before → now:

    Attributes:
        interval: training steps between the readings.
        latents_moved: ``mean|z' - z| / spread``.
        latents_moved_by_distance: ``mean|z' - z| / mean|z - c_w|``: about 1, and a latent can leave its cell.
        translation_share: share of ``mean|z' - z|²`` that a common translation explains, beyond chance.
        affine_share: the same for an affine map, translation included.
        cells_changed: share of the latents whose code is another one now.
        cells_changed_by_latents: the same if only the latents had moved: ``w(z', c) ≠ w(z, c)``.
        cells_changed_by_codes: the same if only the codes had moved: ``w(z, c') ≠ w(z, c)``.
        codes_moved_selected: ``mean|c' - c| / spread`` of the codes that the probe had selected.
        codes_moved_unselected: the same of the other codes.
        follow_selected: slope of the codes' displacements on those of the latents near them (the mean over the cell of
            the nearest latent), for the codes that the probe had selected: 1, they follow fully; 0, they stay behind.
        follow_unselected: the same for the other codes.
        latent_spread: spread, now.
        winning_distance: ``mean|z - c_w|``, now.
        quantization_error: ``mean|z - c_w|² / spread²``, now: 0, the codes tell everything; 1, no more than the mean.
        usage: share of the codes that the probe selects.
        perplexity: how many equally used codes would carry as much information about the probe.
        recent_usage: share of the codes selected in the last 100 training steps.
        age_median: training steps since a code was last selected, the median code.
        age_p90: the same, at the 90th percentile.
        age_max: the same, the longest.
        older_than_1000: share of codes not selected for 1000 training steps.
    """

    interval: float = NAN
    latents_moved: float = NAN
    latents_moved_by_distance: float = NAN
    translation_share: float = NAN
    affine_share: float = NAN
    cells_changed: float = NAN
    cells_changed_by_latents: float = NAN
    cells_changed_by_codes: float = NAN
    codes_moved_selected: float = NAN
    codes_moved_unselected: float = NAN
    follow_selected: float = NAN
    follow_unselected: float = NAN
    latent_spread: float = NAN
    winning_distance: float = NAN
    quantization_error: float = NAN
    usage: float = NAN
    perplexity: float = NAN
    recent_usage: float = NAN
    age_median: float = NAN
    age_p90: float = NAN
    age_max: float = NAN
    older_than_1000: float = NAN

    def to_dict(self) -> dict[str, float]:
        """The values by name."""
        return asdict(self)

    def __str__(self) -> str:
        """The values to look at first, one a line, as far as there is something to say."""
        shown = {words: value for name, words in WORDS.items() if not math.isnan(value := getattr(self, name))}
        return "\n".join(f"{words:<27}{value:10.4g}" for words, value in shown.items()) or "nothing to measure yet"
