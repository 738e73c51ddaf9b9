"""Fréchet distance of two Gaussians, and the moments of features that come in batches.

Own code: torchmetrics takes the eigenvalues of the unsymmetric product of both covariances, which is many times slower
at 2048 features than the symmetric form below.
"""

import torch
from torch import Tensor


def frechet_distance(mean_1: Tensor, covariance_1: Tensor, mean_2: Tensor, covariance_2: Tensor) -> Tensor:
    """``|μ1 - μ2|² + tr(Σ1 + Σ2 - 2 (Σ1 Σ2)^½)``, in float64.

    The trace of the root is the sum of the roots of the eigenvalues of ``Σ1^½ Σ2 Σ1^½``, a symmetric matrix, so that
    covariances without full rank (fewer images than features) need no correction.
    """
    for mean, covariance in ((mean_1, covariance_1), (mean_2, covariance_2)):
        if mean.ndim != 1 or covariance.shape != (len(mean_1), len(mean_1)):
            shapes = [tuple(moment.shape) for moment in (mean_1, covariance_1, mean_2, covariance_2)]
            raise ValueError(f"means must be (d,) and covariances (d, d), got {shapes}")
    mean_1, covariance_1, mean_2, covariance_2 = (
        moment.double() for moment in (mean_1, covariance_1, mean_2, covariance_2)
    )
    values, vectors = torch.linalg.eigh(covariance_1)
    root_1 = vectors * _root(values)  # times any rotation: the product below has the same eigenvalues
    cross = torch.linalg.eigvalsh(root_1.mT @ covariance_2 @ root_1)
    traces = covariance_1.trace() + covariance_2.trace() - 2 * _root(cross).sum()
    return ((mean_1 - mean_2).square().sum() + traces).clamp(min=0)


def _root(eigenvalues: Tensor) -> Tensor:
    """Square roots; what is negative is a zero, rounded."""
    return eigenvalues.clamp(min=0).sqrt()


class FeatureMoments:
    """Mean and covariance of features that come in batches, in float64; memory does not grow with them.

    Args:
        dim: number of features.
    """

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
