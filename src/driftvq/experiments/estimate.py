"""How long a comparison will take on this machine, from a few steps measured here."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from driftvq.drift_meter.probing import pending_starts
from driftvq.experiments.plan import CellPlan, Plan
from driftvq.machine import pick_accelerator
from driftvq.metrics import evaluate
from driftvq.metrics.evaluation import CODE_METRICS
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.fabric import memory_layout
from driftvq.training.objective import make_reconstruction_loss

START_SECONDS = 6.0
"""A process that loads torch, Lightning and the weights of the metrics."""
BATCH = 2
REPEATS = 2
PATIENCE = 15.0
"""Seconds after which methods are no longer measured where another one was, with the same network and images."""


class Speed(NamedTuple):
    """Seconds for one image: of training, for each network, size and method; and of evaluation."""

    train: dict[tuple[str, int, str, int], float]
    evaluate: float


def estimate_cells(plan: Plan, speed: Speed) -> dict[str, tuple[float, float]]:
    """Seconds of training and of evaluation for each cell."""
    times = {}
    for cell in plan.cells:
        config = cell.config
        training = 0.0 if cell.after is not None else (config.steps or 0) * config.batch_size * speed.train[_key(cell)]
        times[cell.name] = START_SECONDS + training, plan.evaluation * speed.evaluate
    return times


def wall_seconds(times: dict[str, tuple[float, float]], jobs: int) -> float:
    """When the last of the cells ends if the next one always goes to the place that is free first."""
    places = [0.0] * jobs
    for seconds in times.values():
        places[places.index(min(places))] += sum(seconds)
    return max(places)


def measure_speed(plan: Plan, threads: int) -> Speed:
    """Train and evaluate a few images of random numbers, with as many threads as a cell will have."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        train: dict[tuple[str, int, str, int], float] = {}
        started = time.monotonic()
        for cell in plan.cells:
            if cell.after is not None or _key(cell) in train:
                continue
            known = [seconds for key, seconds in train.items() if key[:2] == _key(cell)[:2]]
            late = known and time.monotonic() - started > PATIENCE
            train[_key(cell)] = max(known) if late else _training_seconds(cell)
        return Speed(train, _evaluation_seconds(plan))
    finally:
        torch.set_num_threads(before)


def _key(cell: CellPlan) -> tuple[str, int, str, int]:
    codes = cell.config.codebook_size if cell.method.has_codebook else 0
    return cell.config.network, cell.config.size, cell.method.name, codes


def _training_seconds(cell: CellPlan) -> float:

    config = cell.config
    device = pick_accelerator(config.accelerator)
    model = VQVAE(ModelConfig.from_dict(config.model_fields())).to(device)
    layout = memory_layout(config)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    for start in pending_starts(model.quantizer):
        start.finish_()  # it would be measured instead of a step
    loss_of = make_reconstruction_loss(config).to(device)
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    batch = min(config.batch_size, 16 if config.size <= 64 else BATCH)
    images = torch.rand(batch, 3, config.size, config.size, device=device) * 2 - 1
    images = images.contiguous(memory_format=layout)

    def step() -> None:
        output = model(images)
        (loss_of(output.images, images) + output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    return _fastest(step, device) / batch


def _evaluation_seconds(plan: Plan) -> float:
    """The networks of the metrics cost most; the features of the real images are there from the first cell on."""
    device, size = pick_accelerator("auto"), plan.base.size
    images = torch.randint(0, 256, (5 * BATCH, 3, size, size), dtype=torch.uint8)
    names = [name for name in plan.metrics if name not in CODE_METRICS]
    seconds = []
    for count in (BATCH, BATCH, 5 * BATCH):  # the difference of the last two leaves out the loading of weights
        started = time.perf_counter()
        pairs = [(images[:count], images[:count].flip(0), None)]
        evaluate(pairs, codebook_size=None, metrics=names, cache=None, device=device)
        seconds.append(time.perf_counter() - started)
    return max(seconds[2] - seconds[1], 0.0) / (4 * BATCH) / 2


def _fastest(step: Callable[[], None], device: str) -> float:

    best = float("inf")
    for _ in range(1 + REPEATS):  # the first one makes up its mind about memory and algorithms
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
