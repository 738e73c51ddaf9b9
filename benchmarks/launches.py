"""What a step of every quantizer asks of a GPU, counted without one, and what that would take on two of them.

python benchmarks/launches.py                       # all tables
python benchmarks/launches.py --only search         # one of: train, eval, search
python benchmarks/launches.py --shape 2400 1024 8   # other latents, codes and dimensions
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import driftvq
from counting import Cost, count
from driftvq.functional import blocks
from driftvq.quantizers import finite
from measure import table

__all__ = ["Cost", "count"]

Shape = tuple[int, int, int]
SHAPE = (4096, 1024, 64)
WARM_UP = 4
"""Steps before counting: what happens once, at the start, is not in the tables."""

STEPS = 8
"""Counted and averaged, as some things happen only every few steps."""

LAUNCH_SECONDS = 5e-6
DEVICES = {"A100": (2.039e12, 19.5e12), "H100": (3.35e12, 67e12)}
"""Published bytes and float32 FLOPs per second of the SXM models with 80 GB."""

MORE = {
    "trans_vq, MLP": ("trans_vq", {"transform": "mlp"}),
    "residual_vq of 8": ("residual_vq", {"num_quantizers": 8}),
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "peer EMA": ("VectorQuantize", {}),
    "peer residual of 8": ("ResidualVQ", {"num_quantizers": 8}),
}
BARS = {"ns_vq": 110, "trans_vq, MLP": 160, "ema_vq": 60, "residual_vq of 8": 800}
"""Operators of a training step at most."""

SEARCH_SHAPES = [(4096, 1024, 64), (16384, 8192, 64), (16384, 8192, 256), (65536, 65536, 8), (4096, 262144, 8)]


@dataclass(frozen=True)
class Row:
    """A quantizer under the name it has in the tables."""

    name: str
    make: Callable[[Shape], nn.Module]


def rows() -> list[Row]:
    ours = {name: (name, dict[str, Any]()) for name in driftvq.QUANTIZERS} | MORE
    return [Row(name, _peer(*what)) for name, what in PEERS.items()] + [
        Row(name, _ours(*what)) for name, what in ours.items()
    ]


def _ours(name: str, options: dict[str, Any]) -> Callable[[Shape], nn.Module]:
    return lambda shape: driftvq.make_quantizer(name, dim=shape[2], codebook_size=shape[1], **options)


def _peer(name: str, options: dict[str, Any]) -> Callable[[Shape], nn.Module]:
    def make(shape: Shape) -> nn.Module:
        import vector_quantize_pytorch as peer

        module: nn.Module = getattr(peer, name)(dim=shape[2], codebook_size=shape[1], **options)
        return module

    return make


def cost_of(make: Callable[[Shape], nn.Module], shape: Shape, training: bool) -> Cost:
    """Cost of :data:`STEPS` steps, forward and in training also backward, on new latents each time."""
    torch.manual_seed(0)
    module = make(shape).train()
    batches = [torch.randn(1, shape[0], shape[2], requires_grad=True) for _ in range(WARM_UP + STEPS)]
    for latents in batches[:WARM_UP]:
        _train(module, latents)
    counted = batches[WARM_UP:]
    if training:
        return count(lambda: [_train(module, latents) for latents in counted])
    module.eval()
    with torch.no_grad():
        return count(lambda: [module(latents) for latents in counted])


def _train(module: nn.Module, latents: torch.Tensor) -> torch.Tensor:
    quantized, _, loss = module(latents)
    total: torch.Tensor = quantized.sum() + loss.sum()
    total.backward()
    return total


def as_on_a_device() -> None:
    """Go the way of a GPU without Triton: no faiss, no oneDNN, blocks as large as there, latents not looked at."""
    finite.AT_ONCE = blocks.HOST = frozenset()
    os.environ["DRIFTVQ_SEARCH"] = "blocks"
    blocks.CPU_BLOCK_ELEMENTS = blocks.ACCELERATOR_BLOCK_ELEMENTS


def step_table(shape: Shape, training: bool) -> str:
    lines = [_line(row, shape, training) for row in rows()]
    name = "training step, forward and backward" if training else "evaluation step, forward"
    header = ["quantizer", "operators", "host reads", "MB", "GFLOP"]
    header += [f"{device}, µs (estimate)" for device in DEVICES] + (["bar"] if training else [])
    return f"One {name}, N, K, D = {shape}; mean of {STEPS}\n\n" + table(header, lines)


def _line(row: Row, shape: Shape, training: bool) -> list[str]:
    try:
        cost = cost_of(row.make, shape, training)
    except TypeError as error:  # an option that this version does not have
        return [row.name, str(error)]
    operators, reads = cost.operators / STEPS, cost.host_reads / STEPS
    times = [1e6 / STEPS * cost.seconds(LAUNCH_SECONDS, *device) for device in DEVICES.values()]
    cells = [row.name, f"{operators:.0f}", f"{reads:.3g}"]
    cells += [f"{cost.bytes / STEPS / 1e6:.1f}", f"{cost.flops / STEPS / 1e9:.2f}", *(f"{time:.0f}" for time in times)]
    if not training:
        return cells
    bar = BARS.get(row.name)
    met = bar is not None and operators <= bar and reads == 0
    return [*cells, "" if bar is None else f"≤ {bar}, no reads {'✓' if met else '✗'}"]


def search_bytes(shape: Shape) -> dict[str, float]:
    """Bytes that a search moves between the device and its memory, once the codes are prepared.

    ``blocked = 4 (3 N D + K D + 2 N K) + 8 N``: latents are read, centred, written and read; scores written and read.
    ``fused = 4 (N D + K D) + 8 N``, if the codes stay in the cache; else every tile of latents reads them anew.
    """
    n, k, d = shape
    fused = 4 * (n * d + k * d) + 8 * n
    return {
        "blocked": 4 * (3 * n * d + k * d + 2 * n * k) + 8 * n,
        "fused": fused,
        "fused, codes not in cache": fused + 4 * k * d * (-(-n // blocks.TILE_LATENTS) - 1),
    }


def search_table() -> str:
    lines = []
    for shape in SEARCH_SHAPES:
        moved = search_bytes(shape)
        ratio = moved["blocked"] / moved["fused"]
        lines.append(
            [", ".join(map(str, shape)), *(f"{value / 1e6:,.1f}" for value in moved.values()), f"{ratio:,.0f}"]
        )
    header = ["N, K, D", *(f"{way}, MB" for way in search_bytes(SHAPE)), "blocked ÷ fused"]
    return "Bytes moved by a search, by formula\n\n" + table(header, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["train", "eval", "search"], help="print one table instead of all")
    parser.add_argument("--shape", type=int, nargs=3, default=SHAPE, help="latents, codes, dimensions")
    arguments = parser.parse_args()
    as_on_a_device()
    tables: dict[str, Callable[[], str]] = {
        "train": lambda: step_table(tuple(arguments.shape), training=True),
        "eval": lambda: step_table(tuple(arguments.shape), training=False),
        "search": search_table,
    }
    for name, make in tables.items():
        if arguments.only in (None, name):
            print(make() + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
