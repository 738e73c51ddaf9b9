"""Speed and memory of one training step of every quantizer, and of the search, against peers in the same run.

python benchmarks/quantizers.py                  # all tables, five minutes on two cores
python benchmarks/quantizers.py --only search    # one of: step, search, large, small, compiled
python benchmarks/quantizers.py --rounds 2       # faster, noisier
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftvq
from driftvq.functional import nearest
from measure import best_times, in_fresh_process, machine, memory_growth, table

STEP_SHAPE = (16384, 8192, 64)
LARGE = {(4096, 262144, 8): 4096, (4096, 1048576, 8): 8192}
"""Shapes, and megabytes that a training step may take."""

SMALL_SHAPES = [(16 * 150, 1024, 8), (16 * 150, 1024, 128)]
SMALL_STEPS = 16
"""Steps of one turn: some things happen only every few."""
SEARCH_SHAPES = [
    (16384, 1024, 3),
    (16384, 1024, 64),
    (16384, 8192, 3),
    (16384, 8192, 64),
    (16384, 65536, 8),
    (4096, 262144, 8),
]
CDIST_LIMIT = 2**28
"""Distances beyond which torch.cdist would need gigabytes."""

Shape = tuple[int, int, int]


def _ours(name: str, **options: object) -> Callable[[Shape], nn.Module]:
    def make(shape: Shape) -> nn.Module:
        return driftvq.make_quantizer(name, dim=shape[2], codebook_size=shape[1], **options)

    return make


def _peer(name: str, **options: object) -> Callable[[Shape], nn.Module]:
    def make(shape: Shape) -> nn.Module:
        import vector_quantize_pytorch as peer

        module: nn.Module = getattr(peer, name)(dim=shape[2], codebook_size=shape[1], **options)
        return module

    return make


START: dict[str, Any] = {"kmeans_init": False}
MODULES: dict[str, Callable[[Shape], nn.Module]] = {
    "peer EMA": _peer("VectorQuantize"),
    "peer SimVQ": _peer("SimVQ"),
    "VQ": _ours("vq"),
    "EMAVQ": _ours("ema_vq"),
    "EMAVQ, replacement": _ours("ema_vq", threshold_ema_dead_code=1.0),
    "FactorizedVQ": _ours("factorized_vq"),
    "SimVQ": _ours("sim_vq"),
    "NSVQ": _ours("ns_vq", **START),
    "NSVQPaper": _ours("ns_vq_paper", **START),
    "NSVQPublished": _ours("ns_vq_published"),
    "NSVQDeltaE": _ours("ns_vq_delta_e", **START),
    "TransVQ, MLP": _ours("trans_vq", transform="mlp", **START),
    "TransVQ, attention": _ours("trans_vq", **START),
    "TransVQPaper": _ours("trans_vq_paper", **START),
    "TransVQPublished": _ours("trans_vq_published"),
    "WassersteinVQ": _ours("wasserstein_vq"),
    "CVQ": _ours("cvq"),
    "BridgeVQ": _ours("bridge_vq"),
    "IBQ": _ours("ibq"),
    "OptVQ": _ours("opt_vq"),
    "DiVeQ": _ours("diveq", **START),
    "SFDiVeQ": _ours("sf_diveq", **START),
    "NSVQSequel": _ours("ns_vq_sequel", **START),
}
BARS = {
    "EMAVQ": ("peer EMA", 0.20, 1 / 15),
    "EMAVQ, replacement": ("peer EMA", 0.20, 1 / 15),
    "SimVQ": ("peer SimVQ", 0.60, 1 / 3),
    "NSVQ": ("peer EMA", 0.25, 1 / 15),
    "NSVQPaper": ("peer EMA", 0.25, 1 / 15),
    "NSVQPublished": ("peer EMA", 0.25, 1 / 15),
    "TransVQ, MLP": ("SimVQ", 1.6, None),
    "TransVQ, attention": ("SimVQ", 2.5, None),
    **dict.fromkeys(("WassersteinVQ", "CVQ", "BridgeVQ", "IBQ", "OptVQ"), ("peer EMA", 1.0, 1 / 5)),
}
OVER_EMAVQ = {
    "EMAVQ, replacement": 1.15,
    "NSVQ": 1.2,
    "TransVQ, MLP": 1.6,
    "WassersteinVQ": 2,
    "CVQ": 2,
    "BridgeVQ": 2,
    "IBQ": 4,
    "OptVQ": 4,
}
"""How many times the time of EMAVQ a step may take."""
OF_LARGE = ("NSVQ", "EMAVQ", "TransVQ, MLP")
SMALL = {
    "peer residual of 8": _peer("ResidualVQ", num_quantizers=8),
    "residual of 8 EMAVQ": _ours("residual_vq", num_quantizers=8, quantizer="ema_vq"),
    "residual of 8 NSVQ": _ours("residual_vq", num_quantizers=8),
}
"""What is measured at small shapes besides :data:`OF_SMALL`."""
OF_SMALL = ("peer EMA", "peer SimVQ", "VQ", "EMAVQ", "SimVQ", "NSVQ", "TransVQ, MLP", "TransVQ, attention")
SMALL_BARS = {
    "NSVQ": ("EMAVQ", 1.3),
    "TransVQ, MLP": ("EMAVQ", 2.0),
    "TransVQ, attention": ("peer EMA", 1.0),
    "residual of 8 NSVQ": ("residual of 8 EMAVQ", 1.4),
    "residual of 8 EMAVQ": ("peer residual of 8", 1 / 3),
    "EMAVQ": ("peer EMA", 1 / 3),
    "SimVQ": ("peer SimVQ", 1 / 3),
}
COMPILED = (("EMAVQ", 0.0), ("NSVQ", 0.0), ("NSVQ", 0.05), ("TransVQ, MLP", 0.0), ("TransVQ, MLP", 0.05))
"""Quantizers, and how far the latents move in a step, in their spread: where they stand still there is no drift to
follow, and an eager step leaves it alone. Whatever moves the codes comes on top of :class:`SearchAlone`, and a drift on
top of the other parts, :data:`UNDRIVEN`: a graph without it is the least that one which left it alone would take."""


class SearchAlone(nn.Module):
    """The least that a step with a codebook takes: the nearest codes of the latents, and a loss."""

    codes: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(shape[1:]))

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        indices = nearest(latents.flatten(0, 1), self.codes).unflatten(0, latents.shape[:2])
        quantized = latents + (F.embedding(indices, self.codes) - latents).detach()
        return quantized, indices, F.mse_loss(latents, quantized.detach())


FLOOR = "the search and a loss alone"
UNDRIVEN = "winners and relocation alone"
MOST_COMPILED = 0.6
"""Share of the eager time that a step compiled by Inductor may take at small shapes."""


def training_step(name: str, shape: Shape, compiled: bool = False, speed: float = 0.0) -> Callable[[], None]:
    """Forward and backward of a quantizer on latents of the scale of its codes, which move by ``speed`` a step."""
    torch.manual_seed(0)
    undriven = _ours("ns_vq", parts=("winners", "relocation"), **START)
    module = {**MODULES, **SMALL, FLOOR: SearchAlone, UNDRIVEN: undriven}[name](shape)
    start, way = torch.randn(1, shape[0], shape[2]), torch.randn(shape[2])
    steps = itertools.count()

    def error(latents: Tensor) -> Tensor:
        quantized, _, loss = module(latents)
        total: Tensor = quantized.square().mean() + loss.sum()
        return total

    if compiled:
        torch._dynamo.reset()
        error = torch.compile(error, fullgraph=True, mode="reduce-overhead")

    def step() -> None:
        error((start + next(steps) * speed * way).requires_grad_()).backward()

    return step


def two_matmuls(shape: Shape) -> Callable[[], Tensor]:
    """The floor of a kernel update: distances and their use, in the blocks that suit this machine."""
    x, codes = torch.randn(shape[0], shape[2]), torch.randn(shape[1], shape[2])
    block, out = torch.empty(256, shape[1]), torch.zeros(shape[1], shape[2])

    def run() -> Tensor:
        for start in range(0, shape[0], 256):
            torch.mm(x[start : start + 256], codes.t(), out=block)
            out.addmm_(block.t(), x[start : start + 256])
        return out

    return run


def step_table(rounds: int) -> str:
    # First, while this process is small: a child's peak starts at the size of its parent.
    memory = {name: _memory(name, STEP_SHAPE) for name in MODULES}
    calls: dict[str, Callable[[], object]] = {name: training_step(name, STEP_SHAPE) for name in MODULES}
    floor = "two matmuls (floor)"
    times = best_times({**calls, floor: two_matmuls(STEP_SHAPE)}, rounds)
    rows = []
    for name, milliseconds in times.items():
        row = [name, f"{milliseconds:.0f}", f"{milliseconds / times['peer EMA']:.2f}"]
        row += [f"{milliseconds / times[floor]:.2f}", f"{memory[name]:.0f}" if name in memory else ""]
        bars = []
        if name in BARS:
            against, most_time, most_memory = BARS[name]
            ratio = milliseconds / times[against]
            bars.append(f"time {ratio:.2f} of {against} (≤ {most_time:.2f}) {_verdict(ratio, most_time)}")
            if most_memory is not None:
                share = memory[name] / memory[against]
                bars.append(f"memory {share:.3f} (≤ {most_memory:.3f}) {_verdict(share, most_memory)}")
        if name in OVER_EMAVQ:
            ratio, most = milliseconds / times["EMAVQ"], OVER_EMAVQ[name]
            bars.append(f"time {ratio:.2f} of EMAVQ (≤ {most:.2f}) {_verdict(ratio, most)}")
        rows.append([*row, "; ".join(bars)])
    title = f"One training step, N, K, D = {STEP_SHAPE}; {machine()}; best of {rounds}"
    lines = table(["quantizer", "ms", "× peer EMA", "× floor", "extra MB", "bar"], rows)
    return f"{title}\n\n{lines}"


def _by_cdist(x: Tensor, codes: Tensor) -> Tensor:
    return torch.cdist(x, codes).argmin(dim=1)


def search_table(rounds: int) -> str:
    from driftvq.functional.search import load_faiss

    rows = []
    for n, k, d in SEARCH_SHAPES:
        torch.manual_seed(0)
        x, codes = torch.randn(n, d), torch.randn(k, d)
        ways: dict[str, Callable[[], object]] = {
            "ours": partial(nearest, x, codes),
            "blocks": partial(nearest, x, codes, way="blocks"),
        }
        if n * k <= CDIST_LIMIT:
            ways["cdist"] = partial(_by_cdist, x, codes)
        faiss = load_faiss()
        if faiss is not None:
            ways["faiss"] = partial(faiss.knn, x.numpy(), codes.numpy(), 1)
        times = best_times(ways, rounds)
        best = min(value for way, value in times.items() if way != "ours")
        ratio = times["ours"] / best
        cells = [f"{times[way]:.1f}" if way in times else "—" for way in ("cdist", "blocks", "faiss", "ours")]
        rows.append([f"{n}, {k}, {d}", *cells, f"{ratio:.2f} (≤ 1.20) {_verdict(ratio, 1.2)}"])
    title = f"Nearest code, ms; {machine()}; best of {rounds}; peers as they come"
    return (
        title + "\n\n" + table(["N, K, D", "torch.cdist", "blocked addmm", "faiss", "ours", "ours ÷ best peer"], rows)
    )


def small_table(rounds: int) -> str:
    tables = []
    for shape in SMALL_SHAPES:
        calls = {name: _turn(training_step(name, shape)) for name in (*OF_SMALL, *SMALL)}
        times = {name: time / SMALL_STEPS for name, time in best_times(calls, rounds).items()}
        rows = []
        for name, milliseconds in times.items():
            against, most = SMALL_BARS.get(name, ("", 0.0))
            ratio = milliseconds / times[against] if against else 0.0
            bar = f"{ratio:.2f} of {against} (≤ {most:.2f}) {_verdict(ratio, most)}" if against else ""
            rows.append([name, f"{milliseconds:.2f}", f"{milliseconds / times['EMAVQ']:.2f}", bar])
        title = f"One training step, N, K, D = {shape}; {machine()}; best of {rounds} turns of {SMALL_STEPS} steps"
        tables.append(title + "\n\n" + table(["quantizer", "ms", "× EMAVQ", "bar"], rows))
    return "\n\n".join(tables)


def compiled_table(rounds: int) -> str:
    rows = []
    for shape in SMALL_SHAPES:
        floors = {name: _compiled_times(name, shape, 0.0, rounds) for name in (FLOOR, UNDRIVEN)}
        for name, floor in floors.items():
            rows.append([name, ", ".join(map(str, shape)), *map("{:.2f}".format, floor.values()), ""])
        for name, speed in COMPILED:
            times = _compiled_times(name, shape, speed, rounds)
            least = floors[FLOOR if name == "EMAVQ" else UNDRIVEN]["Inductor"] / times["eager"]
            ratio = times["Inductor"] / times["eager"]
            verdict = f"{ratio:.2f} (≤ {MOST_COMPILED:.2f}) {_verdict(ratio, MOST_COMPILED)}, at least {least:.2f}"
            named = f"{name}, latents that drift" if speed else name
            rows.append([named, ", ".join(map(str, shape)), *map("{:.2f}".format, times.values()), verdict])
    title = f"One training step compiled, ms; {machine()}; best of {rounds} turns of {SMALL_STEPS} steps"
    return title + "\n\n" + table(["quantizer", "N, K, D", "eager", "Inductor", "Inductor ÷ eager"], rows)


def _compiled_times(name: str, shape: Shape, speed: float, rounds: int) -> dict[str, float]:
    """Milliseconds of a step, eager and by Inductor."""
    turns = {way: _turn(training_step(name, shape, way == "Inductor", speed)) for way in ("eager", "Inductor")}
    return {way: time / SMALL_STEPS for way, time in best_times(turns, rounds).items()}


def _turn(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(SMALL_STEPS):
            step()

    return run


def large_table() -> str:
    rows = []
    for shape, most in LARGE.items():
        for name in OF_LARGE:
            megabytes = _memory(name, shape)
            rows.append([name, ", ".join(map(str, shape)), f"{megabytes:.0f}", f"≤ {most} {_verdict(megabytes, most)}"])
    title = f"Growth of peak memory in one training step; {machine()}"
    return title + "\n\n" + table(["quantizer", "N, K, D", "MB", "bar"], rows)


def _memory(name: str, shape: Shape) -> float:
    return in_fresh_process(Path(__file__), "--memory-of", name, "--shape", *map(str, shape))


def _verdict(value: float, most: float) -> str:
    return "✓" if value <= most else "✗"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", choices=["step", "search", "large", "small", "compiled"], help="print one table instead of all"
    )
    parser.add_argument("--threads", type=int, help="of torch; the table of small shapes is meant for one")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of which the best counts (default 8)")
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(json.dumps(memory_growth(training_step(arguments.memory_of, tuple(arguments.shape)))))
        return 0
    tables: dict[str, Callable[[], str]] = {
        "large": large_table,
        "step": lambda: step_table(arguments.rounds),
        "search": lambda: search_table(arguments.rounds),
        "small": lambda: small_table(arguments.rounds),
        "compiled": lambda: compiled_table(arguments.rounds),
    }
    printed = []
    for name, make in tables.items():
        if arguments.only in (None, name):
            printed.append(make())
            print(printed[-1] + "\n", flush=True)
    if arguments.out:
        arguments.out.write_text("\n\n".join(printed) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
