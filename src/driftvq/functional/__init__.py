"""Pure tensor functions: no module, no state, no logging.

Names of tensors end in their shapes: n latents, k codes, d dimensions, b latents of one block; a module adds its own.
"""

from driftvq.functional.displacement import field_agreement, field_moments, fit_field
from driftvq.functional.gradients import (
    KERNELS,
    Kernel,
    directional,
    kernel_codebook_loss,
    kernel_transfer,
    masked_mse,
    modified_straight_through,
    orthogonal_loss,
    rotate,
    spread_gradient,
    straight_through,
)
from driftvq.functional.kmeans import KMeansResult, kmeans, kmeans_plus_plus
from driftvq.functional.search import METRICS, WAYS, Metric, Way, highest_logit, nearest, nearest_few
from driftvq.functional.soft import gumbel_softmax, index_softmax, soft_usage
from driftvq.functional.transport import (
    Gaussian,
    distance_spread,
    gaussian,
    gaussian_transport,
    mean_assignment,
    moments,
    square_moments,
    wasserstein_loss,
)
from driftvq.functional.usage import count_codes, perplexity, usage

__all__ = [
    "KERNELS", "METRICS", "WAYS", "Gaussian", "KMeansResult", "Kernel", "Metric", "Way", "count_codes",
    "directional", "distance_spread", "field_agreement", "field_moments", "fit_field", "gaussian",
    "gaussian_transport", "gumbel_softmax", "highest_logit", "index_softmax", "kernel_codebook_loss",
    "kernel_transfer", "kmeans", "kmeans_plus_plus", "masked_mse", "mean_assignment", "modified_straight_through",
    "moments", "nearest", "nearest_few", "orthogonal_loss", "perplexity", "rotate", "soft_usage", "spread_gradient",
    "square_moments", "straight_through", "usage", "wasserstein_loss",
]  # fmt: skip
