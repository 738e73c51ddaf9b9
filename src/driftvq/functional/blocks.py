"""What a device can hold and compute: how many latents to walk at a time, and in which precision.

Nothing of size latents × codes outlives its block, and graphs see what walks over blocks as one operator.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CPU_BLOCK_ELEMENTS = 2**19  # 2 MB of float32: a few blocks fit a shared cache, their steps stay out of main memory
ACCELERATOR_BLOCK_ELEMENTS = 2**26  # 256 MB of float32: few enough kernel launches to keep a GPU busy
MIN_BLOCK_ROWS = 32
ARGMAX_PIECE = 128  # numbers whose maximum is found at once
HOST = frozenset({"cpu"})  # devices whose products go by oneDNN, and highest values by pieces

TILE_LATENTS, TILE_CODES = 64, 64
"""What a program of the fused kernel holds at once. Fixed, as tuning would need the device when the kernel is compiled:
three registers per place of the tile leave room for the products, and 64 KB of shared memory, AMD's, for their factors.
"""

FULL_PRECISION = ("cpu", "cuda")  # devices that have float64 and every function of ``torch.linalg``; Apple's do not
Function = TypeVar("Function", bound=Callable[..., Any])


def operator(
    name: str, fake: Callable[..., Any], backward: Callable[..., Any] | None = None, setup: Any = None
) -> Callable[[Function], Function]:
    """Make a function the operator ``driftvq::name``, which changes none of its arguments.

    ``fake`` gives, from the same arguments, tensors like those returned, without values; ``backward`` and ``setup`` are
    those of ``torch.library.register_autograd``; without a setup the arguments are saved.
    """

    def make(function: Function) -> Function:
        made = torch.library.custom_op(f"driftvq::{name}", function, mutates_args=())
        made.register_fake(fake)
        if backward is not None:
            save = setup or (lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
            made.register_autograd(backward, setup_context=save)
        return cast("Function", made)

    return make


def block_rows(codes: int, device: torch.device) -> int:
    """Rows of latents whose distances to ``codes`` codes make one block on ``device``."""
    budget = CPU_BLOCK_ELEMENTS if device.type == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    return max(MIN_BLOCK_ROWS, budget // max(codes, 1))


def row_blocks(rows: int, codes: int, device: torch.device) -> Iterator[slice]:
    """Slices that cover ``rows`` latents, block by block."""
    step = block_rows(codes, device)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def product(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor | None = None, beta: float = 1.0) -> Tensor:
    """``x wᵀ + β b``, ``(n, k)``, of a block; in float32 on a CPU by oneDNN: MKL is fast on one make of CPUs alone."""
    if _for_one_dnn(x_nd, weight_kd):
        if bias_k is not None:  # oneDNN reads it number by number, whatever its stride
            bias_k = (bias_k if beta == 1 else beta * bias_k).contiguous()
        found_nk: Tensor = torch.ops.mkldnn._linear_pointwise(x_nd, weight_kd, bias_k, "none", [], "")
        return found_nk
    return x_nd @ weight_kd.t() if bias_k is None else torch.addmm(bias_k, x_nd, weight_kd.t(), beta=beta)


def _for_one_dnn(x_nd: Tensor, weight_kd: Tensor) -> bool:
    """Whether oneDNN has a linear layer for these, on a CPU that it is written for, and the user leaves it on."""
    if x_nd.dtype != torch.float32 or x_nd.device.type not in HOST or not (x_nd.numel() and len(weight_kd)):
        return False
    written_for = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return written_for and hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.backends.mkldnn.enabled)


class _Linear(torch.autograd.Function):
    """:func:`product` and its gradient, which is made of products."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_nd, weight_kd)
        return product(x_nd, weight_kd, bias_k)

    @staticmethod
    def backward(ctx: Any, grad_nk: Tensor) -> tuple[Tensor | None, ...]:
        x_nd, weight_kd = ctx.saved_tensors
        asked = ctx.needs_input_grad
        return (
            linear(grad_nk, weight_kd.t()) if asked[0] else None,
            linear(grad_nk.t(), x_nd.t()) if asked[1] else None,
            grad_nk.sum(dim=0) if asked[2] else None,
        )


def linear(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor | None = None) -> Tensor:
    """:func:`product` of whole matrices, with a gradient; graphs, transforms and what is cast see torch's own."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or not _for_one_dnn(x_nd, weight_kd):
        return F.linear(x_nd, weight_kd, bias_k)
    given = [x_nd, weight_kd] if bias_k is None else [x_nd, weight_kd, bias_k]
    if torch._C._are_functorch_transforms_active() or any(type(one) not in (Tensor, nn.Parameter) for one in given):
        return F.linear(x_nd, weight_kd, bias_k)
    found_nk: Tensor = _Linear.apply(x_nd, weight_kd, bias_k)  # type: ignore[no-untyped-call]
    return found_nk


class Linear(nn.Linear):
    """``x Wᵀ + b`` of rows; in training by :func:`linear`, in evaluation as a graph that is exported has it."""

    def forward(self, x_nd: Tensor) -> Tensor:
        return linear(x_nd, self.weight, self.bias) if self.training else super().forward(x_nd)


def highest(x_bk: Tensor, out: Tensor | None = None) -> Tensor:
    """The column of the largest value of each row, ``(b,)``, of equal ones the first.

    ``torch.argmax`` looks at one number after the other; maxima of pieces are found by whole vector registers.
    """
    if x_bk.device.type not in HOST or x_bk.numel() == 0:
        return torch.argmax(x_bk, dim=1, out=out)
    rows, columns = x_bk.shape
    pieces_bpc = x_bk.view(rows, -1, math.gcd(columns, ARGMAX_PIECE))
    piece_b = pieces_bpc.amax(dim=2).argmax(dim=1)
    found_bc = pieces_bpc[torch.arange(rows), piece_b]
    return torch.add(found_bc.argmax(dim=1), piece_b, alpha=found_bc.shape[1], out=out)


def index_like(x_nd: Tensor, *rest: object) -> Tensor:
    """An int64 index for each latent, without a value."""
    return x_nd.new_empty(x_nd.shape[0], dtype=torch.int64)


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 where there is none."""
    return torch.float64 if device.type in FULL_PRECISION else torch.float32


def near(tensor: Tensor) -> Tensor:
    """The tensor where ``torch.linalg`` has every function: on its device, or on the CPU."""
    return tensor if tensor.device.type in FULL_PRECISION else tensor.cpu()
