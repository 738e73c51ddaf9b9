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
BLOCK_VALUES = 2**22
"""Transformed values to work on at a time: enough for large matrix products, little beside the images themselves."""

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
    keep = torch.is_grad_enabled() and weight.requires_grad  # inside of a Function gradients are always off
    result: Tensor = _Winograd.apply(x, weight, keep)  # type: ignore[no-untyped-call]
    return result


class _Winograd(torch.autograd.Function):
    """Both gradients come from the output's gradient at Winograd's points: each step backwards is an adjoint.

    The points of the input are kept for the gradient of the weight: 2.25 times the memory of the input itself.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, keep: bool) -> Tensor:
        (n, c, h, w), o = x.shape, len(weight)
        down, across = _tiles(h, w)
        to_output, weight_pco = _matrix("output", x), _weight_points(weight).transpose(1, 2)
        y = x.new_empty(n, down, TILE, across, TILE, o)
        kept = []
        for images in _blocks(n, down * across * max(c, o)):
            points_ptc = _input_points(x[images])
            points_pto = torch.bmm(points_ptc, weight_pco)
            tiles = _transform(to_output, points_pto.view(PATCH, PATCH, points_pto[0].numel()))
            y[images] = tiles.view(TILE, TILE, -1, down, across, o).permute(2, 3, 0, 4, 1, 5)
            if keep:
                kept.append(points_ptc)
        ctx.save_for_backward(weight, *kept)
        return y.view(n, down * TILE, across * TILE, o)[:, :h, :w].permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weight, *kept = ctx.saved_tensors
        (n, o, h, w), c = grad.shape, weight.shape[1]
        down, across = _tiles(h, w)
        weight_poc = _weight_points(weight)
        for_x, for_weight, _ = ctx.needs_input_grad
        grad_x = grad.new_zeros(n, down + 1, TILE, across + 1, TILE, c) if for_x else None
        sum_poc = grad.new_zeros(PATCH**2, o, c)
        for number, images in enumerate(_blocks(n, down * across * max(c, o))):
            grad_pto = _output_gradient_points(grad[images])
            if for_weight:
                sum_poc.baddbmm_(grad_pto.transpose(1, 2), kept[number])
            if grad_x is not None:
                _add_patches_(grad_x[images], torch.bmm(grad_pto, weight_poc))
        return (
            None if grad_x is None else _cropped(grad_x, h, w),
            _weight_gradient(sum_poc) if for_weight else None,
            None,
        )


def _tiles(h: int, w: int) -> tuple[int, int]:
    """How many tiles cover an image, down and across."""
    return -(-h // TILE), -(-w // TILE)


def _weight_points(weight: Tensor) -> Tensor:
    """``G w Gᵀ``, ``(36, o, c)``."""
    o, c = weight.shape[:2]
    return _transform(_matrix("weight", weight), weight.permute(2, 3, 0, 1)).view(PATCH**2, o, c)


def _weight_gradient(sum_poc: Tensor) -> Tensor:
    """The adjoint of :func:`_weight_points`, ``(o, c, 3, 3)``."""
    _, o, c = sum_poc.shape
    grad = _transform(_matrix("weight", sum_poc).t(), sum_poc.view(PATCH, PATCH, o * c))
    return grad.view(3, 3, o, c).permute(2, 3, 0, 1)


def _cropped(x: Tensor, h: int, w: int) -> Tensor:
    """The image ``(n, c, h, w)`` inside the padding of ``(n, down, 4, across, 4, c)``."""
    n, down, _, across, _, c = x.shape
    return x.view(n, down * TILE, across * TILE, c)[:, 1 : h + 1, 1 : w + 1].permute(0, 3, 1, 2)


def _input_points(x: Tensor) -> Tensor:
    """All patches of images at Winograd's points, ``(36, t, c)``."""
    n, c, h, w = x.shape
    down, across = _tiles(h, w)
    rows = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1 + across * TILE - w, 1, 1 + down * TILE - h)).contiguous()
    by_image, by_row, by_column, _ = rows.stride()
    strides = (by_row, by_column, by_image, TILE * by_row, TILE * by_column, 1)
    patches = rows.as_strided((PATCH, PATCH, n, down, across, c), strides)
    return _transform(_matrix("input", x), patches).view(PATCH**2, n * down * across, c)


def _add_patches_(x: Tensor, points_ptc: Tensor) -> None:
    """The adjoint of :func:`_input_points`: overlapping patches add up in ``(n, down + 1, 4, across + 1, 4, c)``."""
    n, _, _, _, _, c = x.shape
    down, across = x.shape[1] - 1, x.shape[3] - 1
    patches = _transform(_matrix("input", x).t(), points_ptc.view(PATCH, PATCH, points_ptc[0].numel()))
    patches = patches.view(PATCH, PATCH, n, down, across, c).permute(2, 3, 0, 4, 1, 5)
    over = PATCH - TILE
    x[:, :-1, :, :-1] += patches[:, :, :TILE, :, :TILE]
    x[:, :-1, :, 1:, :over] += patches[:, :, :TILE, :, TILE:]
    x[:, 1:, :over, :-1] += patches[:, :, TILE:, :, :TILE]
    x[:, 1:, :over, 1:, :over] += patches[:, :, TILE:, :, TILE:]


def _output_gradient_points(grad: Tensor) -> Tensor:
    """The gradient of the products that the output was made of, ``(36, t, o)``."""
    n, o, h, w = grad.shape
    down, across = _tiles(h, w)
    rows = F.pad(grad.permute(0, 2, 3, 1), (0, 0, 0, across * TILE - w, 0, down * TILE - h))
    tiles = rows.reshape(n, down, TILE, across, TILE, o).permute(2, 4, 0, 1, 3, 5)
    return _transform(_matrix("output", grad).t(), tiles).view(PATCH**2, n * down * across, o)


def _transform(matrix: Tensor, x: Tensor) -> Tensor:
    """``M x Mᵀ`` over the first two dimensions of ``(r, r, …)``, as ``(s, s, n)`` for a matrix of s rows."""
    side, values = len(x), x[0, 0].numel()
    halfway = (matrix @ x.reshape(side, side * values)).view(len(matrix), side, values)
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
