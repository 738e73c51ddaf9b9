"""3×3 convolution with a quarter of the multiplications (Lavin & Gray, 2016), for CPUs.

Shape suffixes: p the 36 points of a 6×6 patch, t tiles of 4×4 outputs, c channels in, o channels out.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 4
"""Outputs along one side of a tile; larger tiles save more but lose digits."""
PATCH = TILE + 2
BLOCK_VALUES = 2**19
"""Transformed values to hold at a time: what fits into a cache is faster than what does not."""

POINTS_FROM_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
POINTS_FROM_WEIGHT = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
OUTPUT_FROM_POINTS = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def winograd_conv3x3(x: Tensor, weight: Tensor) -> Tensor:
    """``conv2d(x, weight, padding=1)`` of a 3×3 kernel, by Winograd's F(4×4, 3×3).

    ``Y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ x B)] A`` on every patch of 6×6 inputs, which gives 4×4 outputs for 36 instead of 144
    multiplications per pair of channels; the products over channels are matrix products. Equal to the direct sum but
    for rounding (a relative error of a few 1e-6 in float32). The result is laid out channels last.

    Args:
        x: ``(n, c, h, w)``.
        weight: ``(o, c, 3, 3)``.

    ``(16, 256, 16, 16)`` and ``(256, 256, 3, 3)`` give ``(16, 256, 16, 16)``.
    """
    if weight.shape[2:] != (3, 3):
        raise ValueError(f"weight must be (o, c, 3, 3), got shape {tuple(weight.shape)}")
    result: Tensor = _Winograd.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


class _Winograd(torch.autograd.Function):
    """The gradient of the input is the same convolution of the output's, by the turned kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = _convolve(grad, weight.flip(2, 3).transpose(0, 1)) if ctx.needs_input_grad[0] else None
        grad_weight = _weight_gradient(x, grad) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    (n, c, h, w), o = x.shape, len(weight)
    down, across = -(-h // TILE), -(-w // TILE)
    to_output = _matrix("output", x)
    weight_pco = _transform(_matrix("weight", x), weight.permute(2, 3, 1, 0)).view(-1, c, o)
    y = x.new_empty(n, down, TILE, across, TILE, o)
    for images in _blocks(n, down * across * max(c, o)):
        points_pto = torch.bmm(_input_points(x[images]), weight_pco)
        tiles = _transform(to_output, points_pto.view(PATCH, PATCH, -1))
        y[images] = tiles.view(TILE, TILE, -1, down, across, o).permute(2, 3, 0, 4, 1, 5)
    return y.view(n, down * TILE, across * TILE, o)[:, :h, :w].permute(0, 3, 1, 2)


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    (n, c, h, w), o = x.shape, grad.shape[1]
    down, across = -(-h // TILE), -(-w // TILE)
    to_output = _matrix("output", x)
    sum_pco = x.new_zeros(PATCH**2, c, o)
    for images in _blocks(n, down * across * max(c, o)):
        rows = F.pad(grad[images].permute(0, 2, 3, 1), (0, 0, 0, across * TILE - w, 0, down * TILE - h))
        tiles = rows.view(-1, down, TILE, across, TILE, o).permute(2, 4, 0, 1, 3, 5)
        grad_pto = _transform(to_output.t(), tiles).view(PATCH**2, -1, o)
        sum_pco.baddbmm_(_input_points(x[images]).transpose(1, 2), grad_pto)
    grad_weight = _transform(_matrix("weight", x).t(), sum_pco.view(PATCH, PATCH, -1))
    return grad_weight.view(3, 3, c, o).permute(3, 2, 0, 1)


def _input_points(x: Tensor) -> Tensor:
    """All patches of images at Winograd's points, ``(36, t, c)``."""
    n, c, h, w = x.shape
    down, across = -(-h // TILE), -(-w // TILE)
    rows = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1 + across * TILE - w, 1, 1 + down * TILE - h)).contiguous()
    by_image, by_row, by_column, _ = rows.stride()
    strides = (by_row, by_column, by_image, TILE * by_row, TILE * by_column, 1)
    patches = rows.as_strided((PATCH, PATCH, n, down, across, c), strides)
    return _transform(_matrix("input", x), patches).view(PATCH**2, -1, c)


def _transform(matrix: Tensor, x: Tensor) -> Tensor:
    """``M x Mᵀ`` over the first two dimensions of ``(r, r, …)``, as ``(s, s, n)`` for a matrix of s rows."""
    side = len(x)
    halfway = (matrix @ x.reshape(side, -1)).view(len(matrix), side, -1)
    return matrix @ halfway


def _blocks(images: int, values_per_image: int) -> list[slice]:
    size = max(1, BLOCK_VALUES // (PATCH**2 * values_per_image))
    return [slice(start, start + size) for start in range(0, images, size)]


def _matrix(of: str, like: Tensor) -> Tensor:
    return _cached_matrix(of, like.dtype, like.device)


@cache
def _cached_matrix(of: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    rows = {"input": POINTS_FROM_INPUT, "weight": POINTS_FROM_WEIGHT, "output": OUTPUT_FROM_POINTS}[of]
    with torch.inference_mode(False):
        return torch.tensor(rows, dtype=dtype, device=device)
