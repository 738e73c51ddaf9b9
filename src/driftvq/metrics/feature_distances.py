"""How far two sets of features are apart: the Fréchet distance of their Gaussians, and the kernel distance."""

from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.functional.blocks import widest_float


def frechet_distance(mean_1: Tensor, covariance_1: Tensor, mean_2: Tensor, covariance_2: Tensor) -> Tensor:
    """``|μ1 - μ2|² + tr(Σ1 + Σ2 - 2 (Σ1 Σ2)^½)``, in float64.

    The trace of the root is the sum of the roots of the eigenvalues of ``Σ1^½ Σ2 Σ1^½``, a symmetric matrix, so that
    covariances without full rank (fewer images than features) need no correction.
    """
    for mean, covariance in ((mean_1, covariance_1), (mean_2, covariance_2)):
        if mean.ndim != 1 or covariance.shape != (len(mean_1), len(mean_1)):
            shapes = [tuple(moment.shape) for moment in (mean_1, covariance_1, mean_2, covariance_2)]
            raise ValueError(f"means must be (d,) and covariances (d, d), got {shapes}")
    mean_1, covariance_1, mean_2, covariance_2 = (x.double() for x in (mean_1, covariance_1, mean_2, covariance_2))
    values, vectors = torch.linalg.eigh(covariance_1)
    # A negative eigenvalue is a zero, rounded. Times any rotation, the product below has the same eigenvalues.
    root_1 = vectors * values.clamp(min=0).sqrt()
    cross = torch.linalg.eigvalsh(root_1.mT @ covariance_2 @ root_1)
    traces: Tensor = covariance_1.trace() + covariance_2.trace() - 2 * cross.clamp(min=0).sqrt().sum()
    return ((mean_1 - mean_2).square().sum() + traces).clamp(min=0)


class FeatureMoments:
    """Mean and covariance of features that come in batches, in float64; memory does not grow with them."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.sum_d = torch.zeros(dim, dtype=torch.float64)
        self.outer_dd = torch.zeros(dim, dim, dtype=torch.float64)

    def update(self, features_nd: Tensor) -> None:
        """Take in one batch."""
        if features_nd.ndim != 2 or features_nd.shape[1] != len(self.sum_d):
            raise ValueError(f"features must be (n, {len(self.sum_d)}), got {tuple(features_nd.shape)}")
        wide = features_nd.detach().cpu().double()
        self.count += len(wide)
        self.sum_d += wide.sum(0)
        self.outer_dd.addmm_(wide.mT, wide)

    @property
    def mean(self) -> Tensor:
        """Mean ``(d,)``."""
        return self.sum_d / self.count

    @property
    def covariance(self) -> Tensor:
        """Sample covariance ``(d, d)``, with n - 1."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 images, got {self.count}")
        return (self.outer_dd - self.count * torch.outer(self.mean, self.mean)) / (self.count - 1)


SUBSETS, SUBSET_SIZE = 100, 1000
SAMPLE = 10_000  # images that are kept for KID; beyond them a random sample, so that memory stays bounded (160 MB)


class KID(NamedTuple):
    """Mean over subsets, their standard deviation (None without subsets) and what they were."""

    mean: float
    std: float | None
    subsets: int
    subset_size: int


def polynomial_mmd(
    x_nd: Tensor, y_md: Tensor, degree: int = 3, gamma: float | None = None, coef: float = 1.0
) -> Tensor:
    """Unbiased squared maximum mean discrepancy with the kernel ``(γ x·y + coef)^degree``.

    ``Σ_{i≠j} k(x_i, x_j) / n(n-1) + Σ_{i≠j} k(y_i, y_j) / m(m-1) - 2 Σ k(x_i, y_j) / nm``; γ is 1/d by default.
    """
    n, m = len(x_nd), len(y_md)
    if x_nd.ndim != 2 or y_md.ndim != 2 or x_nd.shape[1] != y_md.shape[1] or min(n, m) < 2:
        got = f"{tuple(x_nd.shape)} and {tuple(y_md.shape)}"
        raise ValueError(f"features must be (n, d) and (m, d) with n, m ≥ 2, got {got}")
    scale = 1 / x_nd.shape[1] if gamma is None else gamma

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return ((a @ b.mT).to(widest_float(a.device)) * scale + coef) ** degree

    k_xx, k_yy, k_xy = kernel(x_nd, x_nd), kernel(y_md, y_md), kernel(x_nd, y_md)
    within_x = (k_xx.sum() - k_xx.trace()) / (n * (n - 1))
    within_y = (k_yy.sum() - k_yy.trace()) / (m * (m - 1))
    return within_x + within_y - 2 * k_xy.mean()


def kid(real_nd: Tensor, fake_md: Tensor, subsets: int = SUBSETS, subset_size: int = SUBSET_SIZE, seed: int = 0) -> KID:
    """KID as its authors measure it: mean and deviation of :func:`polynomial_mmd` over random subsets.

    With no more images than a subset holds, all of them are used once: then there is no deviation. The same seed given
    to ``torch.manual_seed`` makes torchmetrics draw the same subsets.
    """
    if subsets < 1 or subset_size < 2:
        raise ValueError(f"subsets must be at least 1 and subset_size at least 2, got {subsets} and {subset_size}")
    if (used := min(len(real_nd), len(fake_md))) <= subset_size:
        return KID(float(polynomial_mmd(real_nd, fake_md)), None, 1, used)
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for _ in range(subsets):
        rows_real = torch.randperm(len(real_nd), generator=generator)[:subset_size]
        rows_fake = torch.randperm(len(fake_md), generator=generator)[:subset_size]
        scores.append(polynomial_mmd(real_nd[rows_real], fake_md[rows_fake]))
    values = torch.stack(scores)
    return KID(float(values.mean()), float(values.std(correction=0)), subsets, subset_size)


class FeatureSample:
    """A random sample of ``limit`` pairs of features out of a stream of any length (reservoir sampling)."""

    def __init__(self, dim: int, limit: int = SAMPLE, seed: int = 0) -> None:
        self.seen = 0
        self.rows = torch.empty(limit, 2, dim)
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, real_nd: Tensor, fake_nd: Tensor) -> None:
        """Take in the features of one batch of pairs."""
        for pair in torch.stack((real_nd, fake_nd), 1).cpu():
            place = self.seen
            if place >= len(self.rows):
                place = int(torch.randint(self.seen + 1, (), generator=self.generator))
            if place < len(self.rows):
                self.rows[place] = pair
            self.seen += 1

    @property
    def real(self) -> Tensor:
        """Features of the real images that were kept."""
        return self.rows[: self.seen, 0]

    @property
    def fake(self) -> Tensor:
        """Features of their counterparts, in the same order."""
        return self.rows[: self.seen, 1]
