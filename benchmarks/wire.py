"""What a training step of a codebook sends to other processes, counted at two of them, and what that would take.

python benchmarks/wire.py
python benchmarks/wire.py --shape 1024 16384 3    # latents of a process, codes, dimensions
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import driftvq
from measure import table

SHAPE = (256, 1024, 64)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "EMAVQ": ("ema_vq", {}),
    "EMAVQ, replacement": ("ema_vq", {"threshold_ema_dead_code": 1.0}),
    "NSVQ": ("ns_vq", {"kmeans_init": False}),
    "TransVQ, MLP": ("trans_vq", {"kmeans_init": False, "transform": "mlp"}),
    "TransVQ, attention": ("trans_vq", {"kmeans_init": False}),
}
MOST_MESSAGES = 2
WARM_UP, STEPS = 2, 16
"""Before counting, in which the processes agree on their codebooks, and counted."""

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all")
HOP_SECONDS = 5e-6
MACHINES = {8: 100e9, 64: 25e9}
"""GPUs, and bytes per second between them: 8 within a machine, 64 in eight machines."""


def exchange_seconds(messages: float, payload: float, processes: int, bytes_per_second: float) -> float:
    """An estimate: ``m · 2 log₂ n · 5 µs + 2 (n-1)/n · bytes / bandwidth``, up and down a tree, then as in a ring."""
    hops = 2 * math.ceil(math.log2(processes))
    return messages * hops * HOP_SECONDS + 2 * (processes - 1) / processes * payload / bytes_per_second


class Wire:
    """Counts the messages of this process and their bytes while it is in force."""

    def __init__(self) -> None:
        self.messages, self.bytes = 0, 0

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def send(*args: Any, **kwargs: Any) -> Any:
            tensor = args[1] if isinstance(args[0], list) else args[0]
            self.messages += 1
            self.bytes += tensor.numel() * tensor.element_size()
            return call(*args, **kwargs)

        return send

    def __enter__(self) -> "Wire":
        self._calls = {name: getattr(dist, name) for name in COLLECTIVES}
        for name, call in self._calls.items():
            setattr(dist, name, self.counted(call))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._calls.items():
            setattr(dist, name, call)


def count(method: str, shape: tuple[int, int, int]) -> tuple[float, float]:
    """Messages and bytes of one training step, forward and backward; call it in every process."""
    name, options = METHODS[method]
    latents, codes, dim = shape
    torch.manual_seed(0)
    module = driftvq.make_quantizer(name, dim=dim, codebook_size=codes, **options).train()
    torch.manual_seed(dist.get_rank())

    def step() -> None:
        quantized, _, loss = module(torch.randn(1, latents, dim, requires_grad=True))
        (quantized.square().mean() + loss).backward()

    for _ in range(WARM_UP):
        step()
    with Wire() as wire:
        for _ in range(STEPS):
            step()
    return wire.messages / STEPS, wire.bytes / STEPS


def wire_table(counted: dict[str, tuple[float, float]], shape: tuple[int, int, int]) -> str:
    rows = []
    for method, (messages, payload) in counted.items():
        times = [1e6 * exchange_seconds(messages, payload, *machine) for machine in MACHINES.items()]
        met = "✓" if messages <= MOST_MESSAGES else "✗"
        row = [method, f"{messages:.3g}", f"{payload / 1e3:.1f}", *(f"{time:.0f}" for time in times)]
        rows.append([*row, f"≤ {MOST_MESSAGES} messages {met}"])
    header = ["codebook", "messages", "kB", *(f"{processes} GPUs, µs (estimate)" for processes in MACHINES), "bar"]
    return f"Sent by a process in a training step, K, D = {shape[1:]}; mean of {STEPS}\n\n" + table(header, rows)


def run_both(arguments: list[str]) -> dict[str, tuple[float, float]]:
    """Count in two processes; what the first of them found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, str(Path(__file__)), "--process", *arguments]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("counting failed in one of the processes")
    found: dict[str, tuple[float, float]] = json.loads(outputs[0].splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=SHAPE, help="latents of a process, codes, dimensions")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = tuple(arguments.shape)
    if not arguments.process:
        print(wire_table(run_both(["--shape", *map(str, shape)]), shape))
        return 0
    dist.init_process_group("gloo")
    print(json.dumps({method: count(method, shape) for method in METHODS}))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
