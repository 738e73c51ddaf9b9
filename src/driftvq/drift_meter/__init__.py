"""How far an encoder moves and how its codebook follows, in any model; a reading can be handled without torch."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from driftvq.names import importer
from driftvq.records.metric_table import codebook_state

if TYPE_CHECKING:
    from driftvq.drift_meter.meter import DriftMeter

__all__ = ["DriftMeter", "DriftReading"]
__getattr__ = importer(__name__, meter="DriftMeter")
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
LEFT_BEHIND = 0.3  # codes that follow the latents by less are left behind
MOVING = 0.05  # latents that move by less than this share of their spread between two readings hardly move


@dataclass(frozen=True)
class DriftReading:
    """What changed between two readings, then what is; NaN where there is nothing to compare or to measure.

    With latents z → z', codes c → c', ``w`` a latent's code and ``spread = √mean|z - mean z|²``, before → now.
    """

    interval: float = NAN  # training steps between the readings
    latents_moved: float = NAN  # mean|z' - z| / spread
    latents_moved_by_distance: float = NAN  # mean|z' - z| / mean|z - c_w|: about 1, and a latent can leave its cell
    translation_share: float = NAN  # of mean|z' - z|², what a common translation explains, beyond chance
    affine_share: float = NAN  # the same for an affine map, translation included
    cells_changed: float = NAN  # share of the latents whose code is another one now
    cells_changed_by_latents: float = NAN  # had only the latents moved: w(z', c) ≠ w(z, c)
    cells_changed_by_codes: float = NAN  # had only the codes moved: w(z, c') ≠ w(z, c)
    codes_moved_selected: float = NAN  # mean|c' - c| / spread of the codes that the probe had selected
    codes_moved_unselected: float = NAN  # the same of the other codes
    # Slope of the codes' displacements on those of the latents near them, the mean over the cell of the nearest latent;
    follow_selected: float = NAN  # 1: the codes that the probe had selected follow fully; 0: they stay behind
    follow_unselected: float = NAN  # the same for the other codes
    latent_spread: float = NAN  # now, as all that follows
    winning_distance: float = NAN  # mean|z - c_w|
    quantization_error: float = NAN  # mean|z - c_w|² / spread²: 0, the codes tell everything; 1, no more than the mean
    usage: float = NAN  # share of the codes that the probe selects
    usage_expected: float = NAN  # share that as many latents would select of equally likely codes
    perplexity: float = NAN  # how many equally used codes would carry as much information about the probe
    recent_usage: float = NAN  # share of the codes selected in the last 100 training steps
    age_median: float = NAN  # training steps since a code was last selected
    age_p90: float = NAN
    age_max: float = NAN
    older_than_1000: float = NAN  # share of codes not selected for 1000 training steps

    def to_dict(self) -> dict[str, float]:
        """The values by name."""
        return asdict(self)

    def __str__(self) -> str:
        """Four lines: latents, cells, codes and a verdict; each says what there is to say."""
        latents = _said(
            ("moved {:.2g} spreads", self.latents_moved), ("{:.0%} of it affine", self.affine_share),
            ("in {:,.0f} steps", self.interval), ("spread {:.3g} now", self.latent_spread),
        )  # fmt: skip
        cells = _said(
            ("{:.0%} of the latents changed theirs", self.cells_changed),
            ("{:.0%} had the codes stood still", self.cells_changed_by_latents),
            ("quantization error {:.2g} now", self.quantization_error),
        )
        codes = _said(
            ("selected ones follow {:.2f}", self.follow_selected), ("others {:.2f}", self.follow_unselected),
            ("{:.0%} selected by the probe", self.usage), ("{:.0%} in the last 100 steps", self.recent_usage),
        )  # fmt: skip
        return (
            f"latents  {latents or 'not finite'}\ncells    {cells or 'nothing to compare yet'}\n"
            f"codes    {codes or 'none yet'}\nverdict  {self.verdict()}"
        )

    def verdict(self) -> str:
        """Whether the codebook is alive and why, in one sentence: by training's last 100 steps, else by the probe."""
        if math.isnan(self.latent_spread):
            return "broken: the latents are not finite"
        recent = not math.isnan(self.recent_usage)
        if not recent and math.isnan(self.usage):
            return "unknown: there is no codebook, or it waits for its start"
        share = self.recent_usage if recent else min(1.0, self.usage / self.usage_expected)
        where = "of the codes were selected in the last 100 steps" if recent else "of the use that the probe allows"
        state = codebook_state(share)
        behind = state != "alive" and self.latents_moved >= MOVING and self.follow_unselected < LEFT_BEHIND
        return f"{state}: {share:.0%} {where}" + ("; the other codes stay behind" if behind else "")


def _said(*values: tuple[str, float]) -> str:
    """What is known of some values, in a row."""
    return ", ".join(text.format(value + 0.0) for text, value in values if not math.isnan(value))
