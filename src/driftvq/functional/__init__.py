"""Pure tensor functions: no module, no state, no logging."""

from driftvq.functional.drift import Drift, DriftMoments, drift_moments, drift_persistence, fit_drift
from driftvq.functional.estimators import modified_straight_through, rotate, spread_gradient, straight_through
from driftvq.functional.kernels import (
    KERNELS,
    Kernel,
    gaussian_weights,
    kernel_transfer,
    kernel_weights,
    rank_weights,
    softmax_weights,
)
from driftvq.functional.kmeans import KMeansResult, kmeans, kmeans_plus_plus
from driftvq.functional.losses import kernel_codebook_loss, kernel_moments, masked_mse, orthogonal_loss
from driftvq.functional.sampling import seeded_gumbel
from driftvq.functional.scoring import METRICS, Metric
from driftvq.functional.search import WAYS, Way, highest_logit, nearest
from driftvq.functional.soft import gumbel_softmax, soft_usage
from driftvq.functional.usage import count_codes, dead_codes, perplexity, usage
from driftvq.functional.winograd import winograd_conv3x3

__all__ = [
    "KERNELS",
    "METRICS",
    "WAYS",
    "Drift",
    "DriftMoments",
    "KMeansResult",
    "Kernel",
    "Metric",
    "Way",
    "count_codes",
    "dead_codes",
    "drift_moments",
    "drift_persistence",
    "fit_drift",
    "gaussian_weights",
    "gumbel_softmax",
    "highest_logit",
    "kernel_codebook_loss",
    "kernel_moments",
    "kernel_transfer",
    "kernel_weights",
    "kmeans",
    "kmeans_plus_plus",
    "masked_mse",
    "modified_straight_through",
    "nearest",
    "orthogonal_loss",
    "perplexity",
    "rank_weights",
    "rotate",
    "seeded_gumbel",
    "soft_usage",
    "softmax_weights",
    "spread_gradient",
    "straight_through",
    "usage",
    "winograd_conv3x3",
]
