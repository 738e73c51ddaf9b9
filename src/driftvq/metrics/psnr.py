"""Peak signal-to-noise ratio."""

import torch
from torch import Tensor

from driftvq.metrics.checks import check_data_range, check_pair


def psnr(x: Tensor, y: Tensor, data_range: float) -> Tensor:
    """``10 log10(data_range² / mse)`` in dB of every pair of images; infinite for equal ones.

    Args:
        x, y: ``b c h w``, uint8 or float.
        data_range: highest minus lowest possible value: 255 for uint8, 2 for [-1, 1], 1 for [0, 1].

    Returns:
        ``(b,)``, in float64 for float64 images, else float32. The mean over images is what :func:`evaluate` reports; it
        is not the PSNR of the mean error.
    """
    check_pair(x, y)
    check_data_range(x, data_range)
    if x.dtype == torch.uint8:
        difference = x.to(torch.int32) - y.to(torch.int32)
        mse = difference.square().flatten(1).sum(1).float() / x.shape[1:].numel()
    else:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        mse = (x.to(wide) - y.to(wide)).square().flatten(1).mean(1)
    return 10 * torch.log10(data_range**2 / mse)
