"""What a device can hold and compute: how many latents to walk at a time, and in which precision.

Nothing of size latents × codes outlives its block, and graphs see what walks over blocks as one operator.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

CPU_BLOCK_ELEMENTS = 2**19  # 2 MB of float32: a few blocks fit a shared cache, their steps stay out of main memory
ACCELERATOR_BLOCK_ELEMENTS = 2**26  # 256 MB of float32: few enough kernel launches to keep a GPU busy
MIN_BLOCK_ROWS = 32
ARGMAX_PIECE = 128  # numbers whose maximum is found at once

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


def product(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor | None = None) -> Tensor:
    """``x wᵀ + b``, ``(n, k)``, of a block; in float32 on a CPU by oneDNN: MKL keeps its fast kernels for one make."""
    if x_nd.dtype == torch.float32 and x_nd.device.type == "cpu" and x_nd.numel() and len(weight_kd) and _one_dnn():
        found_nk: Tensor = torch.ops.mkldnn._linear_pointwise(x_nd, weight_kd, bias_k, "none", [], "")
        return found_nk
    return F.linear(x_nd, weight_kd, bias_k)


def _one_dnn() -> bool:
    """Whether torch has oneDNN's linear layers, on the CPUs that they are written for, and the user leaves them on."""
    written_for = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return written_for and hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.backends.mkldnn.enabled)


def highest(x_bk: Tensor) -> Tensor:
    """The column of the largest value of each row, ``(b,)``, of equal ones the first.

    ``torch.argmax`` looks at one number after the other; maxima of pieces are found by whole vector registers.
    """
    rows, columns = x_bk.shape
    if x_bk.device.type != "cpu" or x_bk.numel() == 0:
        return x_bk.argmax(dim=1)
    pieces_bpc = x_bk.view(rows, -1, math.gcd(columns, ARGMAX_PIECE))
    piece_b = pieces_bpc.amax(dim=2).argmax(dim=1)
    found_bc = pieces_bpc[torch.arange(rows), piece_b]
    return found_bc.argmax(dim=1).add_(piece_b, alpha=found_bc.shape[1])


def index_like(x_nd: Tensor, *rest: object) -> Tensor:
    """An int64 index for each latent, without a value."""
    return x_nd.new_empty(x_nd.shape[0], dtype=torch.int64)


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 where there is none."""
    return torch.float64 if device.type in FULL_PRECISION else torch.float32


def near(tensor: Tensor) -> Tensor:
    """The tensor where ``torch.linalg`` has every function: on its device, or on the CPU."""
    return tensor if tensor.device.type in FULL_PRECISION else tensor.cpu()
