"""One cell of a comparison: train, evaluate, keep; ``python -m driftvq.experiments.cell DIR`` runs it by itself."""

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftvq.experiments.records import CELL_FILE, ORIGINALS, RECONSTRUCTIONS, TRAINING, update_cell
from driftvq.files import read_object
from driftvq.training.config import TrainConfig
from driftvq.training.settings import make_config

if TYPE_CHECKING:
    from driftvq.models import VQVAE

INTERRUPTED = 130
ENGINE, THREADS = "DRIFTVQ_ENGINE", "DRIFTVQ_THREADS"
"""Set by the engine: its process, without which a cell stops, and the cell's share of threads."""

KEPT = ("config.yaml", "environment.json", "metrics.jsonl", "skipped.txt")
"""What stays of a finished training."""
BATCH = 16


def run_cell(folder: Path) -> str:
    """Run a cell, or what is left of it, and return its status: "done", "failed", or "waiting" if interrupted."""
    from driftvq.training.stopping import InterruptedTrainingError

    try:
        record = update_cell(folder, status="running", error=None)
        model = prepare_model(folder, record)
        record = update_cell(folder, **measure(folder, record, model), status="done")
    except (InterruptedTrainingError, KeyboardInterrupt):
        update_cell(folder, status="waiting")
    except Exception as error:
        traceback.print_exc()
        update_cell(folder, status="failed", error=describe_error(error))
    return str(read_object(folder / CELL_FILE)["status"])


def describe_error(error: BaseException) -> str:
    """One line: an error of this library speaks for itself, others are named."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError | OSError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def prepare_model(folder: Path, record: dict[str, Any]) -> "VQVAE":
    """The model to evaluate: trained here, or before an interruption, or by another cell."""
    from driftvq.machine import pick_accelerator
    from driftvq.models import VQVAE

    if "train" not in record["seconds"]:
        train_model(folder, record)
    model = VQVAE.from_pretrained(folder / "model", map_location=pick_accelerator("auto"))
    return model.eval()


def train_model(folder: Path, record: dict[str, Any]) -> None:
    """Train, or take over a network and make its codebook; ``model`` and the cost of it are kept."""
    from driftvq.experiments.cost import parameters_of, peak_memory_mb

    config = make_config(record["config"])
    after = record["plan"]["after"]
    if after is None:
        model, cost = _train(folder, config)
    else:
        model, cost = _trained_elsewhere(folder.parent / after)
    if record["plan"]["afterwards"]:
        started = time.perf_counter()
        model = _with_codebook(model, config, record["plan"]["kmeans_images"])
        cost["seconds"]["train"] += time.perf_counter() - started
    model.save_pretrained(folder / "model")
    update_cell(folder, **cost, peak_memory_mb=peak_memory_mb(), parameters=parameters_of(model))
    shutil.rmtree(folder / TRAINING, ignore_errors=True)


def _train(folder: Path, config: TrainConfig) -> tuple["VQVAE", dict[str, Any]]:
    """The model after the last step, whichever validation was the best: all methods take as many steps."""
    from dataclasses import replace

    from driftvq.experiments.cost import step_clock
    from driftvq.training.checkpoints import list_checkpoints
    from driftvq.training.run import train

    run = folder / TRAINING
    resume = bool(list_checkpoints(run / "checkpoints"))
    if not resume:
        shutil.rmtree(run, ignore_errors=True)
    before = read_object(folder / CELL_FILE)["plan"].get("seconds_before", 0.0)
    started = time.perf_counter()
    try:
        with step_clock() as clock:
            result = train(replace(config, out=str(run)), resume=resume, say=_say)
    finally:
        seconds = before + time.perf_counter() - started
        _keep(run, folder)
        plan = read_object(folder / CELL_FILE)["plan"]
        update_cell(folder, plan={**plan, "seconds_before": seconds if list_checkpoints(run / "checkpoints") else 0.0})
    cost = {"seconds": {"train": seconds}, "steps": result.step, "ms_per_step": clock.ms_per_step()}
    return result.model, cost


def _trained_elsewhere(cell: Path) -> tuple["VQVAE", dict[str, Any]]:
    from driftvq.models import VQVAE

    record = read_object(cell / CELL_FILE)
    if record["status"] != "done":
        raise ValueError(f"needs the network of {cell.name}, which is {record['status']}")
    cost = {"seconds": {"train": record["seconds"]["train"]}}
    cost |= {name: record[name] for name in ("steps", "ms_per_step")}
    return VQVAE.from_pretrained(cell / "model"), cost


def _with_codebook(model: "VQVAE", config: TrainConfig, images: int | None) -> "VQVAE":
    from driftvq.data import eval_batches, to_float
    from driftvq.experiments.plan import open_images
    from driftvq.machine import pick_accelerator
    from driftvq.models import quantize_afterwards

    model = model.to(pick_accelerator("auto"))
    source = open_images(config, "train")
    with eval_batches(source, size=config.size, batch_size=BATCH, limit=images) as batches:
        return quantize_afterwards(model, (to_float(b.images) for b in batches), config.codebook_size, config.seed)


def measure(folder: Path, record: dict[str, Any], model: "VQVAE") -> dict[str, Any]:
    """Evaluate the model, rebuild the originals and describe the codes."""
    from driftvq.data import eval_batches
    from driftvq.experiments.measuring import CodeCounts, describe_codes
    from driftvq.experiments.plan import open_images
    from driftvq.experiments.records import write_json
    from driftvq.metrics import evaluate, model_pairs

    started = time.perf_counter()
    config, plan = make_config(record["config"]), record["plan"]
    device = next(model.parameters()).device
    codebook_size = None if model.quantizer is None else model.quantizer.codebook_size
    counts = CodeCounts(codebook_size or 0)
    names = [name for name in plan["metrics"] if codebook_size is not None or name not in ("usage", "perplexity")]
    source = open_images(config, "val")
    with eval_batches(source, size=config.size, batch_size=BATCH, limit=plan["images"]) as batches:
        pairs = counts.watch(model_pairs(model, batches, device))
        evaluation = evaluate(pairs, codebook_size=codebook_size, metrics=names, device=device)
    originals = rebuild(folder, model)
    if model.quantizer is not None:
        write_json(folder / "codes.json", describe_codes(model, counts.counts, [originals]))
    values = evaluation.to_dict()["values"]
    return {
        "values": {name: value for name, value in values.items() if value is not None},
        "n": evaluation.n,
        "missing": [f"{name}: {reason}" for name, reason in evaluation.missing.items()],
        "codebook_size": codebook_size,
        "code_dim": config.code_dim,
        "seconds": {**read_object(folder / CELL_FILE)["seconds"], "evaluate": time.perf_counter() - started},
    }


def rebuild(folder: Path, model: "VQVAE") -> Any:
    """Write the reconstructions of the comparison's originals, and return these in [-1, 1]."""
    import numpy as np
    import torch

    from driftvq.data.images import read_image, to_float, to_uint8, write_image

    paths = sorted((folder.parent.parent / ORIGINALS).glob("*.png"))
    pixels = torch.from_numpy(np.stack([read_image(path) for path in paths])).permute(0, 3, 1, 2)
    images = to_float(pixels).to(next(model.parameters()).device)
    rebuilt = to_uint8(model.reconstruct(images))
    (folder / RECONSTRUCTIONS).mkdir(exist_ok=True)
    for path, image in zip(paths, rebuilt.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
        write_image(folder / RECONSTRUCTIONS / path.name, image)
    return images


def _keep(run: Path, folder: Path) -> None:
    for name in KEPT:
        if (run / name).is_file():
            shutil.copyfile(run / name, folder / name)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _stop_without_engine() -> None:
    """A cell whose engine is gone saves a checkpoint and ends, instead of running on unseen."""
    engine = os.environ.get(ENGINE)

    def watch() -> None:
        while os.getppid() == int(engine or 0):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    if engine is not None:
        threading.Thread(target=watch, daemon=True).start()


def main(folder: str) -> int:
    """Run a cell in this process."""
    _stop_without_engine()
    import torch

    if THREADS in os.environ:
        torch.set_num_threads(int(os.environ[THREADS]))
    return {"done": 0, "waiting": INTERRUPTED}.get(run_cell(Path(folder)), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
