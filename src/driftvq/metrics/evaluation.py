"""Everything that is measured on a model's reconstructions, in one pass."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftvq.metrics import similarity
from driftvq.metrics.gauges import FEW_IMAGES, CodeGauge, FeatureGauge, Gauge, MeanGauge
from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.similarity import TooSmallError, check_rgb
from driftvq.metrics.weights import MissingWeightsError, WrongWeightsError, cache_folder
from driftvq.names import check_name
from driftvq.records import metric_table

METRICS = metric_table.MEASURED
"""What can be measured; what each is called and which way is better is in :mod:`driftvq.records.metric_table`."""

DEFAULT_CACHE = Path("default")
"""Stands for ``features`` in the user's cache folder, which is looked up at the time of the call."""

DEFAULT_METRICS = tuple(name for name in METRICS if name not in ("kid_std", "lpips_vgg"))
"""What is measured unless asked otherwise: everything that costs little beside Inception."""


@dataclass
class Evaluation:
    """What was measured."""

    values: dict[str, float]
    """Metric → value, in the order of :data:`METRICS`."""
    n: int
    """Number of pairs."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a reader must know to compare: image sizes, value range, resize."""
    missing: dict[str, str] = field(default_factory=dict)
    """Metrics that were asked for and not measured, with the reason."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an infinite value is None."""
        finite = {name: value if abs(value) != float("inf") else None for name, value in self.values.items()}
        return {"n": self.n, "values": finite, "notes": dict(self.notes), "missing": dict(self.missing)}

    def to_table(self) -> str:
        """A table for people."""
        lines = []
        for name, value in self.values.items():
            text = metric_table.written(name, value, metric_table.decimals(name, [value]))
            known = metric_table.metric(name)
            lines.append(f"{name:<15} {text:>10}  {'↑' if known.better == 'higher' else '↓'} {known.meaning}")
        facts = {"n": f"{self.n:,} images"} | self.notes
        lines += ["", *(f"{name}: {text}" for name, text in facts.items())]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"not measured: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(lines)


def evaluate(
    pairs: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    *,
    codebook_size: int | None,
    metrics: Sequence[str] | None = None,
    weights: Path | None = None,
    cache: Path | None = DEFAULT_CACHE,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure reconstructions against their originals in one pass over the batches.

    A metric whose weights are absent or that needs larger images ends up in ``missing``; the others are measured.

    Args:
        pairs: batches of originals and reconstructions, uint8 RGB ``b 3 h w``, and the indices between them or None.
        codebook_size: number of codes; None for a model without a codebook.
        metrics: names from :data:`METRICS` (default: :data:`DEFAULT_METRICS`).
        weights: folder to look for the metrics' weights first.
        cache: folder for the features of the originals, found again by content (default: the user's cache); None keeps
            nothing.
        device: where the networks of the metrics run.
        progress: told the number of images after each batch.
    """
    chosen = [check_name("metric", name, METRICS) for name in (DEFAULT_METRICS if metrics is None else metrics)]
    folder = cache_folder() / "features" if cache is DEFAULT_CACHE else cache
    gauges, missing = _make_gauges(chosen, codebook_size, weights, folder, str(device))
    sizes: Counter[str] = Counter()
    try:
        for real, fake, indices in pairs:
            _check_batch(real, fake)
            sizes[f"{real.shape[-2]}×{real.shape[-1]}"] += len(real)
            real, fake = real.to(device), fake.to(device)
            for gauge in list(gauges):
                try:
                    gauge.update(real, fake, indices)
                except TooSmallError as error:  # it cannot take such images, and is given up
                    missing |= dict.fromkeys(gauge.names, str(error))
                    gauges.remove(gauge)
            if progress is not None:
                progress(len(real))
    finally:
        for gauge in gauges:
            gauge.close()
    return _summary(gauges, sizes, missing)


def _make_gauges(
    chosen: Sequence[str], codebook_size: int | None, weights: Path | None, cache: Path | None, device: str
) -> tuple[list[Gauge], dict[str, str]]:
    """The gauges of the chosen metrics, and why others cannot be made."""

    def mean_gauge(name: str) -> Gauge:
        if name.startswith("lpips_"):
            return MeanGauge(name, LPIPS(name.removeprefix("lpips_"), (0, 255), weights).to(device))
        return MeanGauge(name, partial(getattr(similarity, name), data_range=255))

    features = tuple(
        name for name in metric_table.FEATURE_METRICS if name in chosen or (name == "kid" and "kid_std" in chosen)
    )
    codes = tuple(name for name in metric_table.CODE_METRICS if name in chosen)
    makers: dict[tuple[str, ...], Callable[[], Gauge]] = {}
    if features:
        makers[features] = partial(FeatureGauge, features, weights, cache, device)
    makers |= {(name,): partial(mean_gauge, name) for name in metric_table.MEAN_METRICS if name in chosen}
    if codes and codebook_size is not None:
        makers[codes] = partial(CodeGauge, codes, codebook_size)
    gauges: list[Gauge] = []
    missing = dict.fromkeys(codes if codebook_size is None else (), "the model has no codebook")
    for names, make in makers.items():
        try:
            gauges.append(make())
        except (MissingWeightsError, WrongWeightsError) as error:
            missing |= dict.fromkeys(names, str(error))
    return gauges, missing


def _check_batch(real: Tensor, fake: Tensor) -> None:
    if real.dtype != torch.uint8 or fake.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 (0 to 255), got {real.dtype} and {fake.dtype}")
    if real.ndim != 4 or real.shape != fake.shape:
        raise ValueError(f"images must be b 3 h w of one shape, got {tuple(real.shape)} and {tuple(fake.shape)}")
    check_rgb(real)


def _summary(gauges: list[Gauge], sizes: Counter[str], missing: dict[str, str]) -> Evaluation:
    n = sizes.total()
    if n == 0:
        raise ValueError("there must be at least one image to evaluate, got none")
    values: dict[str, float] = {}
    listed = ", ".join(f"{size} ({count:,})" for size, count in sizes.most_common(3))
    more = f" and {len(sizes) - 3} more" if len(sizes) > 3 else ""
    notes = {"sizes": listed + more, "value range": "0 to 255"}
    for gauge in gauges:
        if isinstance(gauge, FeatureGauge) and n < 2:
            missing |= dict.fromkeys(gauge.names, "rFID and KID need at least 2 images")
            continue
        values |= gauge.values()
        notes |= gauge.notes
    if "rfid" in values and n < FEW_IMAGES:
        notes["few images"] = f"rFID at n < {FEW_IMAGES:,} says little; it falls as n grows, so compare at one n only"
    return Evaluation({name: values[name] for name in METRICS if name in values}, n, notes, missing)
