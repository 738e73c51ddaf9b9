"""rFID, KID, LPIPS, SSIM, PSNR and the use of a codebook; the value range is always an argument."""

from driftvq.metrics.code_counter import CodeCounter
from driftvq.metrics.evaluation import DEFAULT_METRICS, METRICS, Evaluation, evaluate
from driftvq.metrics.feature_distances import KID, FeatureMoments, frechet_distance, kid, polynomial_mmd
from driftvq.metrics.inception import Inception
from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.similarity import ms_ssim, psnr, ssim
from driftvq.metrics.weights import MissingWeightsError, WrongWeightsError, find_weights

__all__ = [
    "DEFAULT_METRICS", "KID", "LPIPS", "METRICS", "CodeCounter", "Evaluation", "FeatureMoments", "Inception",
    "MissingWeightsError", "WrongWeightsError", "evaluate", "find_weights", "frechet_distance", "kid", "ms_ssim",
    "polynomial_mmd", "psnr", "ssim",
]  # fmt: skip
