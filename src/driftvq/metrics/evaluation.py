"""Everything that is measured on a model's reconstructions, in one pass; memory does not grow with the images."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftvq.metrics import similarity
from driftvq.metrics.code_counter import CodeCounter
from driftvq.metrics.feature_cache import FeatureCache
from driftvq.metrics.feature_distances import SUBSET_SIZE, FeatureMoments, FeatureSample, frechet_distance, kid
from driftvq.metrics.inception import FEATURES, RESIZE, Inception
from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.similarity import TooSmallError, check_pair, check_rgb
from driftvq.metrics.weights import MissingWeightsError, WrongWeightsError, cache_folder
from driftvq.names import check_name
from driftvq.quantizers.quantizer import Quantizer
from driftvq.records import metric_table

FEW_IMAGES = 1000  # below so many images rFID hardly tells a good model from a bad one
METRICS = metric_table.MEASURED
"""What can be measured; what each is called and which way is better is in :mod:`driftvq.records.metric_table`."""
DEFAULT_CACHE = Path("default")  # ``features`` in the user's cache folder, looked up at the time of the call
DEFAULT_METRICS = tuple(name for name in METRICS if name not in ("kid_std", "lpips_vgg"))
"""What is measured unless asked otherwise: everything that costs little beside Inception."""


class Gauge(ABC):
    """Something measured on pairs of images: the metrics of its names."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.notes: dict[str, str] = {}  # what a reader of the values must know

    @abstractmethod
    def update(self, real: Tensor, fake: Tensor, indices: Tensor | None) -> None:
        """Take in one batch: uint8 ``b 3 h w`` twice, and the indices of the real images."""

    @abstractmethod
    def values(self) -> dict[str, float]:
        """The metrics of all that was taken in."""

    def close(self) -> None:  # noqa: B027 - most have nothing to keep
        """Keep what must outlive an interruption."""


class MeanGauge(Gauge):
    """The mean over images of a metric of a pair; images that are reproduced exactly are counted apart if infinite."""

    def __init__(self, name: str, measure: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(name)
        self.measure = measure
        self.total, self.count, self.infinite = 0.0, 0, 0

    def update(self, real: Tensor, fake: Tensor, indices: Tensor | None) -> None:
        with torch.no_grad():
            measured = self.measure(real, fake).cpu().double()
        finite = measured[~measured.isinf()]
        self.total += float(finite.sum())
        self.count += len(finite)
        self.infinite += len(measured) - len(finite)

    def values(self) -> dict[str, float]:
        name = self.names[0]
        if self.infinite:
            self.notes[name] = f"mean without {self.infinite:,} images that are reproduced exactly"
        return {name: self.total / self.count if self.count else math.inf}


class FeatureGauge(Gauge):
    """rFID and KID from Inception's features; those of real images come from the cache where it has them."""

    def __init__(self, names: tuple[str, ...], weights: Path | None, cache: Path | None, device: str) -> None:
        super().__init__(*names)
        self.inception = Inception((0, 255), weights).to(device)
        self.cache = FeatureCache(None if cache is None else cache / self.inception.extractor, FEATURES)
        self.real, self.fake = FeatureMoments(FEATURES), FeatureMoments(FEATURES)
        self.sample = FeatureSample(FEATURES) if "kid" in names else None

    def update(self, real: Tensor, fake: Tensor, indices: Tensor | None) -> None:
        features_real = self.cache.features(real, self.inception)
        features_fake = self.inception(fake).cpu()
        if "rfid" in self.names:
            self.real.update(features_real)
            self.fake.update(features_fake)
        if self.sample is not None:
            self.sample.update(features_real, features_fake)

    def values(self) -> dict[str, float]:
        self.notes["resize"] = f"{RESIZE}, for rFID and KID"
        values = {}
        if "rfid" in self.names:
            moments = (self.real.mean, self.real.covariance, self.fake.mean, self.fake.covariance)
            values["rfid"] = float(frechet_distance(*moments))
        if self.sample is None:
            return values
        result, kept = kid(self.sample.real, self.sample.fake), len(self.sample.rows)
        values["kid"] = result.mean
        if result.std is None:
            self.notes["kid"] = f"all images at once, no subsets: they (and kid_std) need more than {SUBSET_SIZE:,}"
        else:
            drawn = "" if self.sample.seen <= kept else f" from a random sample of {kept:,} images"
            self.notes["kid"] = f"{result.subsets} subsets of {result.subset_size:,}{drawn}"
            values["kid_std"] = result.std
        return values

    def close(self) -> None:
        self.cache.write()
        if self.cache.problem:
            self.notes["cache"] = self.cache.problem


class CodeGauge(Gauge):
    """Usage, perplexity and bits per image from the indices."""

    def __init__(self, names: tuple[str, ...], codes: int | Quantizer) -> None:
        super().__init__(*names)
        self.counter = CodeCounter(codes)

    def update(self, real: Tensor, fake: Tensor, indices: Tensor | None) -> None:
        if indices is None:
            raise ValueError("usage, perplexity and bits_per_image need the indices of every batch, got None")
        self.counter.update(indices)

    def values(self) -> dict[str, float]:
        per_code, enough = self.counter.latents_per_code(), metric_table.LATENTS_PER_CODE
        doubt = f": fewer than {enough}, so codes that are rarely needed look dead" if per_code < enough else ""
        if "usage" in self.names:
            self.notes["usage"] = f"{per_code:.3g} latents per code{doubt}"
        return {name: float(getattr(self.counter, name)()) for name in self.names}


@dataclass
class Evaluation:
    """What was measured."""

    values: dict[str, float]  # metric → value, in the order of METRICS
    n: int  # pairs
    notes: dict[str, str] = field(default_factory=dict)  # what a reader must know to compare, such as sizes and resize
    missing: dict[str, str] = field(default_factory=dict)  # metrics that were asked for and not measured; the reason

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
        lines += ["", f"n: {self.n:,} images", *(f"{name}: {text}" for name, text in self.notes.items())]
        for why in dict.fromkeys(self.missing.values()):
            names = (name for name, reason in self.missing.items() if reason == why)
            lines.append(f"not measured: {', '.join(names)}: {why}")
        return "\n".join(lines)


def evaluate(
    pairs: Iterable[tuple[Tensor, Tensor, Tensor | None]], *, codebook_size: int | Quantizer | None,
    metrics: Sequence[str] | None = None, weights: Path | None = None, cache: Path | None = DEFAULT_CACHE,
    device: str | torch.device = "cpu", progress: Callable[[int], None] | None = None,
) -> Evaluation:  # fmt: skip
    """Measure reconstructions against their originals in one pass over the batches.

    A metric whose weights are absent or that needs larger images ends up in ``missing``; the others are measured.

    The pairs are batches of originals and reconstructions, uint8 RGB ``b 3 h w``, and the indices between them or None,
    like ``codebook_size`` for a model without a codebook; if it has several, or levels, give its quantizer instead: it
    knows what its indices mean. ``metrics`` are names from :data:`METRICS`; ``weights``, a
    folder to look for the metrics' weights first; ``cache``, one for the features of the originals, found again by
    content (default: the user's; None: none). ``progress`` is told the number of images of each batch.
    """
    chosen = [check_name("metric", name, METRICS) for name in (DEFAULT_METRICS if metrics is None else metrics)]
    folder = cache_folder() / "features" if cache is DEFAULT_CACHE else cache
    gauges, missing = _make_gauges(chosen, codebook_size, weights, folder, str(device))
    sizes: Counter[str] = Counter()
    try:
        for real, fake, indices in pairs:
            if real.dtype != torch.uint8 or fake.dtype != torch.uint8:
                raise ValueError(f"images must be uint8 (0 to 255), got {real.dtype} and {fake.dtype}")
            check_pair(real, fake)
            check_rgb(real)
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
    chosen: Sequence[str], codebook_size: int | Quantizer | None, weights: Path | None, cache: Path | None, device: str
) -> tuple[list[Gauge], dict[str, str]]:
    """The gauges of the chosen metrics, and why others cannot be made."""

    def mean_gauge(name: str) -> Gauge:
        if name.startswith("lpips_"):
            return MeanGauge(name, LPIPS(name.removeprefix("lpips_"), (0, 255), weights).to(device))
        return MeanGauge(name, partial(getattr(similarity, name), data_range=255))

    wanted = {*chosen, "kid"} if "kid_std" in chosen else set(chosen)
    features = tuple(name for name in metric_table.FEATURE_METRICS if name in wanted)
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
