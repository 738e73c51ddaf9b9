"""Metrics that take in pairs of uint8 images, or indices, batch by batch; memory does not grow with the images."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from driftvq.functional import count_codes, perplexity, usage
from driftvq.metrics.feature_cache import FeatureCache
from driftvq.metrics.feature_distances import SUBSET_SIZE, FeatureMoments, FeatureSample, frechet_distance, kid
from driftvq.metrics.inception import FEATURES, RESIZE, Inception
from driftvq.records.metric_table import LATENTS_PER_CODE


class CodeCounter:
    """Counts codes over batches of indices, K for each codebook; memory does not grow with the images."""

    def __init__(self, codebook_size: int) -> None:
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.codebook_size = codebook_size
        self.counts_qk: Tensor | None = None
        self.images = 0
        self.indices = 0

    def update(self, indices: Tensor) -> None:
        """Count one batch, ``b h w`` or ``b h w q`` with an index in each of q codebooks; -1 is not counted."""
        if indices.ndim not in (3, 4) or indices.is_floating_point():
            raise ValueError(f"indices must be integers b h w or b h w q, got {indices.dtype} {tuple(indices.shape)}")
        if indices.numel() and not -1 <= int(indices.min()) <= int(indices.max()) < self.codebook_size:
            found = f"{int(indices.min())} to {int(indices.max())}"
            raise ValueError(f"indices must lie between -1 and {self.codebook_size - 1}, got {found}")
        places = indices.long().reshape(-1, indices.shape[3] if indices.ndim == 4 else 1)
        counts_qk = torch.stack([count_codes(place, self.codebook_size) for place in places.unbind(1)]).cpu()
        if self.counts_qk is not None and len(self.counts_qk) != len(counts_qk):
            raise ValueError(f"indices per position must stay {len(self.counts_qk)}, got {len(counts_qk)}")
        self.counts_qk = counts_qk if self.counts_qk is None else self.counts_qk + counts_qk
        self.images += len(indices)
        self.indices += int((indices >= 0).sum())

    def usage(self) -> float:
        """Share of codes selected at least once; the mean over codebooks if there are several."""
        return self._mean(usage)

    def perplexity(self) -> float:
        """How many equally used codes would carry as much information; the mean over codebooks."""
        return self._mean(perplexity)

    def bits_per_image(self) -> float:
        """Indices per image times log2 K: the size of an image's tokens without entropy coding."""
        return self.indices / max(self.images, 1) * math.log2(self.codebook_size)

    def _mean(self, measure: Callable[[Tensor], Tensor]) -> float:
        if self.counts_qk is None:
            return math.nan
        return float(sum(float(measure(counts_k)) for counts_k in self.counts_qk) / len(self.counts_qk))


FEW_IMAGES = 1000
"""Below so many images rFID hardly tells a good model from a bad one."""


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

    def __init__(self, names: tuple[str, ...], codebook_size: int) -> None:
        super().__init__(*names)
        self.counter = CodeCounter(codebook_size)

    def update(self, real: Tensor, fake: Tensor, indices: Tensor | None) -> None:
        if indices is None:
            raise ValueError("usage, perplexity and bits_per_image need the indices of every batch, got None")
        self.counter.update(indices)

    def values(self) -> dict[str, float]:
        levels = 1 if self.counter.counts_qk is None else len(self.counter.counts_qk)
        per_code = self.counter.indices / levels / self.counter.codebook_size
        doubt = f": fewer than {LATENTS_PER_CODE}, so codes that are rarely needed look dead"
        if "usage" in self.names:
            self.notes["usage"] = f"{per_code:.3g} latents per code" + (doubt if per_code < LATENTS_PER_CODE else "")
        return {name: float(getattr(self.counter, name)()) for name in self.names}
