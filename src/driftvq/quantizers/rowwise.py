"""A trained function that maps each row by itself, over more rows than will be used.

Shape suffixes: k rows, u rows in use, d dimensions.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from driftvq.functional.blocks import row_blocks

MANY_ROWS = 16_384
"""From so many rows on a batch selects few of them: computing those again is cheaper than keeping all."""


def map_rows(function: Callable[[Tensor], Tensor], parameters: Iterable[Tensor], x_kd: Tensor, width: int) -> Tensor:
    """``function(x)`` for a function that maps each row by itself.

    With many rows they are walked in blocks and nothing is stored; the backward pass computes again the rows that have
    a gradient, such as the codes that a batch has selected.

    Args:
        function: gives for each row one of the same length.
        parameters: what it is trained by.
        x_kd: rows; if they have a gradient themselves, everything is stored.
        width: numbers per row in the widest of its layers.
    """
    if len(x_kd) < MANY_ROWS or x_kd.requires_grad or torch.compiler.is_compiling():
        return function(x_kd)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return _ManyRows.apply(function, width, x_kd, *trained)  # type: ignore[no-untyped-call,no-any-return]


class _ManyRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], width: int, x_kd: Tensor, *trained: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x_kd, *trained)
        y_kd = torch.empty_like(x_kd)
        for rows in row_blocks(len(x_kd), width, x_kd.device):
            y_kd[rows] = function(x_kd[rows])
        return y_kd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_kd: Tensor) -> tuple[Tensor | None, ...]:
        x_kd, *trained = ctx.saved_tensors
        used_u = grad_kd.ne(0).any(dim=1).nonzero().squeeze(1)
        with torch.enable_grad(), torch.autocast(x_kd.device.type, enabled=False):
            y_ud = ctx.function(x_kd[used_u])
            grads = torch.autograd.grad(y_ud, trained, grad_kd[used_u])
        return None, None, None, *grads
