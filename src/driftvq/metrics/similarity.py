"""PSNR, structural similarity at one scale and at five, and what every metric of two images asks of them."""

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor


class TooSmallError(ValueError):
    """Images that a metric cannot be measured on, because they are too small."""


def check_pair(x: Tensor, y: Tensor) -> None:
    """Both are images ``b c h w`` of one shape and type."""
    if x.ndim != 4 or x.shape != y.shape:
        raise ValueError(f"both images must be b c h w of one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    if x.dtype != y.dtype or not (x.is_floating_point() or x.dtype == torch.uint8):
        raise ValueError(f"both images must be uint8 or both of one float type, got {x.dtype} and {y.dtype}")


def check_rgb(x: Tensor) -> None:
    """The networks of the metrics see colour images."""
    if x.shape[1] != 3:
        raise ValueError(f"images must have 3 channels (RGB), got {x.shape[1]} in shape {tuple(x.shape)}")


def check_size(x: Tensor, least: int, what: str) -> None:
    """Both sides have at least so many pixels."""
    if min(x.shape[-2:]) < least:
        raise TooSmallError(f"{what} needs images of at least {least}×{least} pixels, got {x.shape[-2]}×{x.shape[-1]}")


def check_value_range(x: Tensor, value_range: tuple[float, float]) -> None:
    """The lowest value lies below the highest, and they are 0 and 255 where the type fixes them."""
    low, high = value_range
    if not low < high:
        raise ValueError(f"value_range must be (lowest, highest), got {value_range}")
    if x.dtype == torch.uint8 and (low, high) != (0, 255):
        raise ValueError(f"value_range of uint8 images must be (0, 255), got {value_range}")


def psnr(x: Tensor, y: Tensor, data_range: float) -> Tensor:
    """``10 log10(data_range² / mse)`` in dB of every pair of images, ``(b,)``; infinite for equal ones.

    x and y are ``b c h w``, uint8 or float; ``data_range`` is the highest minus the lowest possible value: 255 for
    uint8, 2 for [-1, 1], 1 for [0, 1]. In float64 for float64 images, else float32. The mean over images is what
    :func:`evaluate` reports; it is not the PSNR of the mean error.
    """
    wide_x, wide_y = _prepare(x, y, data_range)
    if x.dtype == torch.uint8:  # whose sums are exact
        mse = (wide_x - wide_y).square().int().flatten(1).sum(1).float() / x.shape[1:].numel()
    else:
        mse = (wide_x - wide_y).square().flatten(1).mean(1)
    return 10 * torch.log10(data_range**2 / mse)


WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # Wang, Simoncelli and Bovik (2003), finest scale first
MS_SSIM_LEAST_SIZE = WINDOW * 2 ** (len(SCALE_WEIGHTS) - 1)  # smaller ones do not hold the window at the coarsest scale
STRIP_PIXELS = 2**18  # of all images of a batch, at once; keeps memory at some 300 MB beside the images


def ssim(x: Tensor, y: Tensor, data_range: float) -> Tensor:
    """Structural similarity (Wang et al., 2004) of every pair of images, at least 11×11; 1 for equal ones.

    Gaussian window of 11×11 with σ = 1.5, K1 = 0.01, K2 = 0.03, population covariance, only windows that lie inside the
    image, mean over positions and channels. Arguments as :func:`psnr`.
    """
    x, y = _prepare(x, y, data_range)
    check_size(x, WINDOW, "SSIM")
    return _mean_similarities(x, y, data_range)[0]


def ms_ssim(x: Tensor, y: Tensor, data_range: float) -> Tensor:
    """Structural similarity over five scales, each half the size of the one before; arguments as :func:`ssim`.

    ``Π_s cs_s^w_s`` with the luminance of the coarsest scale; negative similarities count as 0. Images below 176×176
    are an error, because fewer scales would be another metric.
    """
    x, y = _prepare(x, y, data_range)
    check_size(x, MS_SSIM_LEAST_SIZE, "MS-SSIM, with its five scales,")
    factors = []
    for scale, weight in enumerate(SCALE_WEIGHTS):
        if scale:
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
        whole, contrast = _mean_similarities(x, y, data_range)
        factors.append(F.relu(whole if scale == len(SCALE_WEIGHTS) - 1 else contrast) ** weight)
    return reduce(torch.mul, factors)


def _prepare(x: Tensor, y: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """A pair of images, checked; float64 as it is, others as float32."""
    check_pair(x, y)
    if not data_range > 0:
        raise ValueError(f"data_range must be positive, got {data_range}")
    if x.dtype == torch.uint8 and data_range != 255:
        raise ValueError(f"data_range of uint8 images must be 255, got {data_range}")
    return (x, y) if x.dtype == torch.float64 else (x.float(), y.float())


def _mean_similarities(x: Tensor, y: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """Means ``(b,)`` over windows and channels of luminance × contrast and of contrast."""
    # Variances are differences of large numbers: they keep more digits when the values lie around zero.
    middle = x.detach().mean((2, 3), keepdim=True)
    windows = x.shape[2] - WINDOW + 1
    step = max(WINDOW, STRIP_PIXELS // (x.shape[0] * x.shape[3]))
    wholes, contrasts = [], []
    for start in range(0, windows, step):  # all products of a whole photograph together take a kilobyte a pixel
        rows = slice(start, min(start + step, windows) + WINDOW - 1)
        luminance, contrast = _similarities(x[:, :, rows], y[:, :, rows], middle, data_range)
        wholes.append((luminance * contrast).sum((1, 2, 3)))
        contrasts.append(contrast.sum((1, 2, 3)))
    count = x.shape[1] * windows * (x.shape[3] - WINDOW + 1)
    return torch.stack(wholes).sum(0) / count, torch.stack(contrasts).sum(0) / count


def _similarities(x: Tensor, y: Tensor, middle: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """Luminance and contrast-structure terms at every position of the window."""
    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    xc, yc = x - middle, y - middle
    mean_x, mean_y, xx, yy, xy = _blur(torch.cat((xc, yc, xc * xc, yc * yc, xc * yc))).chunk(5)
    variance_x, variance_y = xx - mean_x * mean_x, yy - mean_y * mean_y
    contrast = (2 * (xy - mean_x * mean_y) + c2) / (variance_x + variance_y + c2)
    mean_x, mean_y = mean_x + middle, mean_y + middle
    return (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1), contrast


def _blur(x: Tensor) -> Tensor:
    """Gaussian mean of every window inside the image: one pass along each axis."""
    offsets = torch.arange(WINDOW, dtype=torch.float64) - (WINDOW - 1) / 2
    weights = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    weights = (weights / weights.sum()).to(x)
    planes = x.flatten(0, 1).unsqueeze(1)
    planes = F.conv2d(F.conv2d(planes, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    return planes.view(*x.shape[:2], *planes.shape[-2:])
