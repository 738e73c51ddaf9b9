"""rFID, KID, LPIPS, SSIM, PSNR and the use of a codebook; the value range is always an argument."""

from driftvq.metrics.evaluation import DEFAULT_METRICS, METRICS, Evaluation, Metric, evaluate
from driftvq.metrics.frechet import FeatureMoments, frechet_distance
from driftvq.metrics.inception import Inception
from driftvq.metrics.kid import KID, kid, polynomial_mmd
from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.pairs import model_pairs
from driftvq.metrics.psnr import psnr
from driftvq.metrics.ssim import ms_ssim, ssim
from driftvq.metrics.usage import CodeCounter
from driftvq.metrics.weights import MissingWeightsError, WrongWeightsError, find_weights

__all__ = [
    "DEFAULT_METRICS",
    "KID",
    "LPIPS",
    "METRICS",
    "CodeCounter",
    "Evaluation",
    "FeatureMoments",
    "Inception",
    "Metric",
    "MissingWeightsError",
    "WrongWeightsError",
    "evaluate",
    "find_weights",
    "frechet_distance",
    "kid",
    "model_pairs",
    "ms_ssim",
    "polynomial_mmd",
    "psnr",
    "ssim",
]
