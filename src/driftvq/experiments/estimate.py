"""How long a comparison will take on this machine, from a few steps measured here."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.drift_meter.probing import pending_starts
from driftvq.experiments.methods import LATENT_STRIDE
from driftvq.experiments.plan import CellPlan, Plan
from driftvq.machine import pick_accelerator, torch_threads
from driftvq.metrics import evaluate
from driftvq.models import VQVAE, ModelConfig
from driftvq.progress import clock_time
from driftvq.records.metric_table import CODE_METRICS, LATENTS_PER_CODE
from driftvq.training.fabric import memory_layout, pick_precision
from driftvq.training.objective import ReconstructionLoss

START_SECONDS = 6.0  # a process that loads torch, Lightning and the weights of the metrics
BATCH = 2
# What a reconstruction costs of a training step, whose backward costs twice its forward; and its encoder's half.
FORWARD, ENCODE = 1 / 3, 1 / 6
# Seconds after which methods are no longer measured where another one was, with the same network and images.
PATIENCE = 15.0
Key = tuple[str, int, str, int, int]  # network, size of the images, method, number of codes, and images of a batch


def outlook(plan: Plan, jobs: int, threads: int) -> str:
    """The cells with the time that they will take."""
    if not plan.cells:
        return "every cell is finished\n"
    times = estimate_cells(plan, measure_speed(plan, threads))
    width = max(len(name) for name in times)
    lines = [f"{plan.recipe.title} · scale {plan.scale.name} · {plan.data}: {plan.train:,} images to train on"]
    lines += [f"{'cell':<{width}}  {'steps':>7}  {'train':>8}  {'evaluate':>8}"]
    for cell in plan.cells:
        train, evaluation = map(clock_time, times[cell.name])
        steps = "–" if cell.after is not None else f"{cell.config.steps:,}"
        lines.append(f"{cell.name:<{width}}  {steps:>7}  {train:>8}  {evaluation:>8}")
    share = f"{len(plan.cells)} cells, {jobs} at a time with {threads} threads each"
    about = f"about {clock_time(wall_seconds(times, jobs))} at the speed just measured"
    return "\n".join([*lines, f"{share}, {plan.evaluation} images to evaluate on: {about}"]) + "\n"


class Speed(NamedTuple):
    """Seconds for one image of training, by what is trained, and those of an evaluation: fixed, and for one image."""

    train: dict[Key, float]
    fixed: float
    evaluate: float


def estimate_cells(plan: Plan, speed: Speed) -> dict[str, tuple[float, float]]:
    """Seconds of training, with its validations, and of evaluation for each cell."""
    times = {}
    for cell in plan.cells:
        config, seconds = cell.config, speed.train[_key(cell)]
        steps = config.steps or 0
        validated = steps / config.val_every * min(config.val_images or plan.held_out, plan.held_out)
        training = seconds * (steps * config.batch_size + FORWARD * validated)
        if cell.after is not None:
            training = seconds * ENCODE * min(plan.scale.kmeans_images or plan.train, plan.train)
        evaluation = plan.evaluation * (speed.evaluate + FORWARD * seconds) + ENCODE * seconds * _counted(cell, plan)
        times[cell.name] = START_SECONDS + training, speed.fixed + evaluation
    return times


def _counted(cell: CellPlan, plan: Plan) -> float:
    """Images that usage is counted over, held out and to train on, as far as there are so many and mirrored ones."""
    if not cell.method.has_codebook:
        return 0.0
    needed = LATENTS_PER_CODE * cell.config.codebook_size / (cell.config.size // LATENT_STRIDE) ** 2
    return min(needed, 2 * plan.held_out) + min(needed, 2 * plan.train)


def wall_seconds(times: dict[str, tuple[float, float]], jobs: int) -> float:
    """When the last of the cells ends if the next one always goes to the place that is free first."""
    places = [0.0] * jobs
    for seconds in times.values():
        places[places.index(min(places))] += sum(seconds)
    return max(places)


def measure_speed(plan: Plan, threads: int) -> Speed:
    """Train and evaluate a few images of random numbers, with as many threads as a cell will have."""
    with torch_threads(threads):
        found, train = {_key(cell): cell for cell in plan.cells}, dict[Key, float]()
        # Every method with the most codes that it will have, then with fewer.
        later = {key: sum(other[:3] == key[:3] and other[3] > key[3] for other in found) for key in found}
        started = time.monotonic()
        for key in sorted(found, key=later.__getitem__):
            late = any(known[:2] == key[:2] for known in train) and time.monotonic() - started > PATIENCE
            train[key] = _like(key, train) if late else _training_seconds(found[key])
        return Speed(train, *_evaluation_seconds(plan))


def _like(key: Key, train: dict[Key, float]) -> float:
    """The method as it was measured, with the same batch or codes if it was, else the median of the others."""
    same = [known for known in train if known[:3] == key[:3]]
    if not same:
        return statistics.median(seconds for known, seconds in train.items() if known[:2] == key[:2])
    return train[max(same, key=lambda known: (known[4] == key[4], known[3] == key[3]))]


def _key(cell: CellPlan) -> Key:
    """A codebook that is made afterwards has no part in training."""
    method = cell.method
    codes = cell.config.codebook_size if method.has_codebook and method.afterwards is None else 0
    return cell.config.network, cell.config.size, method.afterwards or method.name, codes, cell.config.batch_size


def _training_seconds(cell: CellPlan) -> float:
    config, layout = cell.config, memory_layout(cell.config)
    device = pick_accelerator(config.accelerator)
    model = VQVAE(ModelConfig.from_dict(config.model_fields())).to(device)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    for start in pending_starts(model.quantizer):
        start.finish_()  # it would be measured instead of a step
    loss_of = ReconstructionLoss(config).to(device)
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    batch = min(config.batch_size, 16 if config.size <= 64 else BATCH)
    images = (torch.rand(batch, 3, config.size, config.size, device=device) * 2 - 1).contiguous(memory_format=layout)
    half, seconds = pick_precision(config) == "bf16-mixed", []
    for _ in range(2):  # the first one makes up its mind about memory and algorithms
        started = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            output = model(images)
        (loss_of(output.images.float(), images) + output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds) / batch


def _evaluation_seconds(plan: Plan) -> tuple[float, float]:
    """The fixed part, weights that are loaded and what is done at the end, and that of each image."""
    device, size = pick_accelerator("auto"), plan.base.size
    # The features of the real images are there from the first cell on, so the same real images are measured again.
    real, *fakes = torch.randint(0, 256, (3, BATCH, 3, size, size), dtype=torch.uint8)
    names = [name for name in plan.metrics if name not in CODE_METRICS]
    asked: list[float] = []

    def pairs() -> Iterator[tuple[Tensor, Tensor, None]]:
        for fake in fakes:
            asked.append(time.perf_counter())
            yield real, fake, None
        asked.append(time.perf_counter())

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        evaluate(pairs(), codebook_size=None, metrics=names, cache=Path(cache), device=device)
    fixed = time.perf_counter() - started - (asked[2] - asked[0])
    return max(fixed, 0.0), (asked[2] - asked[1]) / BATCH
