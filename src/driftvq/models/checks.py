"""What a model accepts: images and indices, or an error that says what is wrong with them."""

import torch
from torch import Tensor

RANGE_SLACK = 1e-3
"""How far images may leave [-1, 1]: the rounding of a conversion, not a wrong range."""


def check_images(images: Tensor, least: int) -> None:
    """Refuse what is not a batch of images in [-1, 1], ``b 3 h w``, of at least ``least`` pixels a side.

    A compiled graph cannot branch on values, so the range is not checked there.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        hint = "; convert bytes by x / 127.5 - 1" if got == torch.uint8 else ""
        raise ValueError(f"images must be a floating-point tensor in [-1, 1], got {got}{hint}")
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be b 3 h w, got shape {tuple(images.shape)}")
    if min(images.shape[2:]) < least:
        raise ValueError(f"images must be at least {least}×{least} pixels, got {images.shape[2]}×{images.shape[3]}")
    if torch.compiler.is_compiling() or images.numel() == 0:
        return
    low, high = (float(value) for value in images.detach().aminmax())
    if not (low >= -1 - RANGE_SLACK and high <= 1 + RANGE_SLACK):
        raise ValueError(f"images must lie in [-1, 1], got values from {low:g} to {high:g}")


def check_indices(indices: Tensor, per_position: int) -> None:
    """Refuse what is not a batch of indices: ``b h w``, or ``b h w q`` with q = ``per_position`` unless that is 0."""
    if not isinstance(indices, Tensor) or indices.dtype == torch.bool or indices.is_floating_point():
        got = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
        raise ValueError(f"indices must be a tensor of integers, got {got}")
    if indices.ndim != (4 if per_position else 3):
        layout = f"b h w {per_position}" if per_position else "b h w"
        raise ValueError(f"indices must be {layout}, got shape {tuple(indices.shape)}")


def check_size(size: tuple[int, int], most: tuple[int, int]) -> None:
    """Refuse a height and width to crop to that are not within those of the whole images."""
    if len(size) != 2 or not all(1 <= side <= limit for side, limit in zip(size, most, strict=True)):
        raise ValueError(f"size must be a height and a width of at most {most}, got {size!r}")
