"""One cell of a comparison: train, measure, keep; ``python -m driftvq.experiments.cell DIR`` runs it by itself."""

import os
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from driftvq.data import to_float
from driftvq.experiments import measuring
from driftvq.files import read_records
from driftvq.machine import pick_accelerator
from driftvq.models import VQVAE, quantize_afterwards
from driftvq.models.vqvae import count_parameters
from driftvq.records import runs
from driftvq.records.codec import write_record
from driftvq.records.comparisons import CODES_FILE, TRAINING, Cell, Status, read_cell, update_cell
from driftvq.training.checkpoints import list_checkpoints
from driftvq.training.config import TrainConfig
from driftvq.training.loop import Probe
from driftvq.training.run import train
from driftvq.training.settings import make_config
from driftvq.training.stopping import INTERRUPTED, InterruptedTrainingError

# Set by the engine: its process, without which a cell stops, and the cell's share of threads.
ENGINE, THREADS = "DRIFTVQ_ENGINE", "DRIFTVQ_THREADS"
KEPT = (runs.CONFIG_FILE, runs.ENVIRONMENT_FILE, runs.METRICS_FILE, runs.SKIPPED_FILE)  # what stays of a training
UNFINISHED = "unfinished"  # among a cell's seconds: those of a training that was interrupted


def run_cell(folder: Path) -> Status:
    """Run a cell, or what is left of it, and return its status: "done", "failed", or "waiting" if interrupted."""
    try:
        cell = update_cell(folder, status="running", error=None)
        if "train" not in cell.seconds:
            cell = train_model(cell)
        measure_model(cell, VQVAE.from_pretrained(folder / runs.MODEL, map_location=pick_accelerator("auto")).eval())
    except (InterruptedTrainingError, KeyboardInterrupt):
        update_cell(folder, status="waiting")
    except Exception as error:
        traceback.print_exc()
        update_cell(folder, status="failed", error=describe_error(error))
    return read_cell(folder).status


def describe_error(error: BaseException) -> str:
    """One line: an error of this library speaks for itself, others are named."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError | OSError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def train_model(cell: Cell) -> Cell:
    """Train, or take over a network and make its codebook; the model, what it says of itself and its cost are kept."""
    config = make_config(cell.config)
    if cell.task.after is None:
        model, cost = _train(cell, config)
    else:
        other = read_cell(cell.folder.parent / cell.task.after)
        if other.status != "done":
            raise ValueError(f"needs the network of {cell.task.after}, which is {other.status}")
        model = VQVAE.from_pretrained(other.folder / runs.MODEL)
        cost = {"seconds": {"train": other.seconds["train"]}, "steps": other.steps, "ms_per_step": other.ms_per_step}
    if cell.task.afterwards:
        started = time.perf_counter()
        with measuring.batches_of(config, "train", cell.task.kmeans_images) as batches:
            images, device = (to_float(batch.images) for batch in batches), pick_accelerator("auto")
            model = quantize_afterwards(model.to(device), images, config.codebook_size, config.seed)
        cost["seconds"]["train"] += time.perf_counter() - started
        _log_validation(cell, config, model, cost["steps"])
    model.save_pretrained(cell.folder / runs.MODEL)
    values = {**_on_the_way(cell, config), **_readings(model, config)}
    counts = count_parameters(model)  # of the quantizer, codes that no optimizer trains included
    parts = {"network": counts["encoder"] + counts["decoder"], "quantizer": counts["quantizer"] + counts["codes"]}
    cell = update_cell(cell.folder, **cost, values=values, peak_memory_mb=measuring.peak_memory_mb(), parameters=parts)
    shutil.rmtree(cell.folder / TRAINING, ignore_errors=True)
    return cell


def _train(cell: Cell, config: TrainConfig) -> tuple[VQVAE, dict[str, Any]]:
    """The model after the last step, whichever validation was the best: all methods take as many steps."""
    run = cell.folder / TRAINING
    resume = bool(list_checkpoints(run / runs.CHECKPOINTS))
    if not resume:
        shutil.rmtree(run, ignore_errors=True)
    probe = Probe(cell.task.probes, measuring.UsageProbe(config).read) if cell.task.probes else None
    before = cell.seconds.get(UNFINISHED, 0.0) if resume else 0.0
    say = partial(print, file=sys.stderr, flush=True)
    started, times = time.perf_counter(), list[float]()  # when each step of any optimizer ended
    timing = register_optimizer_step_post_hook(lambda *arguments: times.append(time.perf_counter()))
    try:
        result = train(replace(config, out=str(run)), resume=resume, say=say, probe=probe)
    finally:
        timing.remove()
        seconds = before + time.perf_counter() - started
        for name in KEPT:
            if (run / name).is_file():
                shutil.copyfile(run / name, cell.folder / name)
        update_cell(cell.folder, seconds={UNFINISHED: seconds})
    # The median leaves out validations and checkpoints, which few of the intervals contain.
    ms = 1000 * statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None
    return result.model, {"seconds": {"train": seconds}, "steps": result.step, "ms_per_step": ms}


def _log_validation(cell: Cell, config: TrainConfig, model: VQVAE, step: int) -> None:
    """What a codebook made afterwards is worth on the images that the others are validated on: all its log says."""
    metrics = ("psnr", "usage", "perplexity")
    found = measuring.measure(model, config, config.val_images or None, metrics, config.batch_size).values
    (cell.folder / runs.METRICS_FILE).unlink(missing_ok=True)  # of the network without codes
    runs.append_record(cell.folder / runs.METRICS_FILE, step, {f"val/{name}": value for name, value in found.items()})


def _on_the_way(cell: Cell, config: TrainConfig) -> dict[str, float]:
    """What probes found during the training: ``usage@300`` is that after 300 steps, a warm-up not counted."""
    found = {}
    for record in read_records(cell.folder / runs.METRICS_FILE):
        for name in ("usage", "perplexity"):
            if record.get(f"probe/{name}") is not None:
                found[f"{name}@{record['step'] - config.warm_up}"] = float(record[f"probe/{name}"])
    return found


def _readings(model: VQVAE, config: TrainConfig) -> dict[str, float]:
    with measuring.batches_of(config, "val", 8 * measuring.BATCH) as batches:
        device = next(model.parameters()).device
        latents: list[Tensor] = [model.latents(to_float(batch.images).to(device)) for batch in batches]
    return measuring.readings(model, torch.cat(latents).movedim(1, -1).flatten(end_dim=-2))


def measure_model(cell: Cell, model: VQVAE) -> Cell:
    """Measure a trained model, and with that end the cell."""
    started = time.perf_counter()
    config = make_config(cell.config)
    evaluation = measuring.measure(model, config, cell.task.images, cell.task.metrics)
    values = {name: value for name, value in evaluation.to_dict()["values"].items() if value is not None}
    if "usage" in values:
        values["selected"] = values.pop("usage")
    probe = measuring.UsageProbe(config)
    values |= probe.read(model)
    originals = measuring.rebuild(cell.folder, model)
    if probe.counts is not None:
        write_record(cell.folder / CODES_FILE, measuring.describe_codes(model, probe.counts, originals))
    return update_cell(
        cell.folder, status="done", values={**values, **cell.values}, n=evaluation.n,
        usage_over=probe.over or None, usage_latents=probe.latents or None,
        missing=tuple(f"{name}: {reason}" for name, reason in evaluation.missing.items()),
        codebook_size=None if model.quantizer is None else model.quantizer.codebook_size, code_dim=config.code_dim,
        seconds={**cell.seconds, "evaluate": time.perf_counter() - started},
    )  # fmt: skip


def _stop_without(engine: int) -> None:
    """A cell whose engine is gone saves a checkpoint and ends, instead of running on unseen."""
    while os.getppid() == engine:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def main(folder: str) -> int:
    """Run a cell in this process."""
    if ENGINE in os.environ:
        threading.Thread(target=_stop_without, args=(int(os.environ[ENGINE]),), daemon=True).start()
    if THREADS in os.environ:
        torch.set_num_threads(int(os.environ[THREADS]))
    return {"done": 0, "waiting": INTERRUPTED}.get(run_cell(Path(folder)), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
