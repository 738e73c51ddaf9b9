"""What training costs beside the bare network, in one run.

python benchmarks/training.py                # small network: the share of everything around it; Tab. 1: against a peer
python benchmarks/training.py --rounds 5

Training is the whole of `driftvq train`: loader, Lightning, quantizer, logs. The time of a step is the median from one
step of the optimizer to the next. The contestants take turns; the best of the rounds counts.
"""

import argparse
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from vector_quantize_pytorch import VectorQuantize

from driftvq.data import open_source, train_batches
from driftvq.models.architecture import NETWORKS
from driftvq.training.config import TrainConfig
from driftvq.training.run import train
from measure import machine, table

BATCH, SIZE, CODES, DIM = 16, 64, 1024, 64
WARM_UP = 2
FASTEST_HELP = 5


def training(network: str, steps: int) -> float:
    """Seconds per step of `driftvq train`."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            network=network,
            codebook_size=CODES,
            code_dim=DIM,
            size=SIZE,
            batch_size=BATCH,
            steps=steps,
            val_images=1,
            val_every=10**6,
            checkpoint_every=10**6,
            out=str(Path(folder) / "run"),
        )
        return step_time(lambda: train(config))


def step_time(run: Callable[[], object]) -> float:
    """Median seconds between two steps of an optimizer."""
    marks: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: marks.append(time.perf_counter()))
    try:
        run()
    finally:
        hook.remove()
    return statistics.median(after - before for before, after in pairwise(marks[WARM_UP:]))


class PlainLoop:
    """Encoder, decoder and Adam on one batch, again and again; with a peer's quantizer, or with none."""

    def __init__(self, network: str, steps: int, quantizer: nn.Module | None, ours: bool) -> None:
        torch.manual_seed(0)
        encoder, decoder, _ = NETWORKS[network](DIM)
        self.model = nn.ModuleList([encoder, decoder])
        self.layout = torch.channels_last if ours else torch.contiguous_format
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.quantizer, self.steps = quantizer, steps
        self.optimizer = torch.optim.Adam(self.model.parameters(), 5e-4, fused=ours)
        self.images = (torch.rand(BATCH, 3, SIZE, SIZE) * 2 - 1).contiguous(memory_format=self.layout)

    def __call__(self) -> None:
        for _ in range(self.steps):
            self._step()

    def _step(self) -> None:
        encoder, decoder = self.model
        latents: Tensor = encoder(self.images)
        loss = latents.new_zeros(())
        if self.quantizer is not None:
            latents, _, loss = self.quantizer(latents)
        loss = loss + F.mse_loss(decoder(latents), self.images)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def peer() -> nn.Module:
    quantizer: nn.Module = VectorQuantize(
        dim=DIM, codebook_size=CODES, accept_image_fmap=True, kmeans_init=True, threshold_ema_dead_code=2
    )
    return quantizer


def loading() -> float:
    """Seconds per batch of the loader alone, with one worker."""
    batches = iter(train_batches(open_source(None, "train", size=SIZE), size=SIZE, batch_size=BATCH, seed=0, workers=1))
    for _ in range(20):
        next(batches)
    start = time.perf_counter()
    for _ in range(100):
        next(batches)
    return (time.perf_counter() - start) / 100


def help_time() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "driftvq.cli", "--help"], check=True, capture_output=True)
    return time.perf_counter() - start


def verdict(value: float, bar: float) -> str:
    return f"{value:.2f} (≤ {bar}) {'✓' if value <= bar else '✗'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    rounds = parser.parse_args().rounds
    logging.getLogger("lightning").setLevel(logging.ERROR)
    contestants: dict[str, Callable[[], float]] = {
        "small, network alone": partial(step_time, PlainLoop("small", 60, None, ours=True)),
        "small, driftvq train": partial(training, "small", 60),
        "Tab. 1, plain fp32 loop with the peer's EMA": partial(step_time, PlainLoop("paper", 8, peer(), ours=False)),
        "Tab. 1, network alone": partial(step_time, PlainLoop("paper", 8, None, ours=True)),
        "Tab. 1, driftvq train": partial(training, "paper", 12),
        "loader alone, one worker": loading,
    }
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            best[name] = min(best[name], run())
    small, bare = best["small, driftvq train"], best["small, network alone"]
    around = verdict(1 - bare / small, 0.35)
    speed_up = best["Tab. 1, plain fp32 loop with the peer's EMA"] / best["Tab. 1, driftvq train"]
    notes = {
        "small, driftvq train": f"share of everything around the network {around}",
        "Tab. 1, driftvq train": f"{speed_up:.2f} × the plain loop's images per second",
        "loader alone, one worker": f"share of a small step {verdict(best['loader alone, one worker'] / small, 1)}",
    }
    print(f"Batch {BATCH}, {SIZE}×{SIZE}, K = {CODES}, D = {DIM}; {machine()}; best of {rounds}.\n")
    rows = [[name, f"{1e3 * s:.1f}", f"{BATCH / s:.0f}", notes.get(name, "")] for name, s in best.items()]
    print(table(["", "ms per step", "images per second", "bar"], rows))
    print(f"\n`driftvq --help` {verdict(min(help_time() for _ in range(FASTEST_HELP)), 1)} s")


if __name__ == "__main__":
    main()
