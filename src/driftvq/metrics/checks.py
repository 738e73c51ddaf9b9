"""What every metric of two images asks of them."""

import torch
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


def check_data_range(x: Tensor, data_range: float) -> None:
    """The width of the value range is positive, and 255 where the type fixes it."""
    if not data_range > 0:
        raise ValueError(f"data_range must be positive, got {data_range}")
    if x.dtype == torch.uint8 and data_range != 255:
        raise ValueError(f"data_range of uint8 images must be 255, got {data_range}")


def check_value_range(x: Tensor, value_range: tuple[float, float]) -> None:
    """The lowest value lies below the highest, and they are 0 and 255 where the type fixes them."""
    low, high = value_range
    if not low < high:
        raise ValueError(f"value_range must be (lowest, highest), got {value_range}")
    if x.dtype == torch.uint8 and (low, high) != (0, 255):
        raise ValueError(f"value_range of uint8 images must be (0, 255), got {value_range}")
