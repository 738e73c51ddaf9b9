"""What is in a model and in the records of its training."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from driftvq.data.images import to_float
from driftvq.data.loader import ImageBatch
from driftvq.drift_meter import DriftReading
from driftvq.files import read_records
from driftvq.inspection.codebook_state import describe_codebook, give_verdict
from driftvq.metrics.evaluation import CodeCounter
from driftvq.models import VQVAE, model_hash
from driftvq.models.vqvae import count_parameters
from driftvq.records.codec import encode
from driftvq.records.metric_table import is_better, metric
from driftvq.records.runs import CONFIG_FILE, METRICS_FILE
from driftvq.training.settings import read_settings

DEFAULT_SIZE = 64


def inspect_model(
    model: VQVAE | None, run: Path | None, batches: Iterable[ImageBatch] | None = None, size: int | None = None
) -> dict[str, Any]:
    """Everything that is known about a model, as plain values.

    Args:
        model: or None, for a run that has not saved one yet.
        run: the run's folder, if there is one.
        batches: images to measure the use of the codes on.
        size: side of the images that the bits are given for; by default that of the run, or 64.
    """
    training_config = read_run_config(run)
    size = size or int((training_config or {}).get("size") or DEFAULT_SIZE)
    report: dict[str, Any] = {"model": None, "codebook": None, "use": None}
    if model is not None:
        report |= {"model": describe_model(model, size), "codebook": describe_codebook(model)}
        if batches is not None and model.quantizer is not None:
            report["use"] = measure_use(model, batches)
    records = [] if run is None else read_records(run / METRICS_FILE)
    report |= {"training_config": training_config, "training": summarise(records), "drift": drift_series(records)}
    plain: dict[str, Any] = encode(report | {"verdict": give_verdict(report)})
    return plain


def describe_model(model: VQVAE, size: int) -> dict[str, Any]:
    """Config, hash, parameters per part and the bits of an image."""
    facts: dict[str, Any] = {
        "config": model.config.to_dict(),
        "hash": model_hash(model),
        "parameters": count_parameters(model),
        "downscale": model.downscale,
        "not_finite": [name for name, value in model.state_dict().items() if not value.isfinite().all()],
    }
    if model.quantizer is None:
        return facts
    height, width = model.grid_size((size, size))
    indices = height * width * max(1, model.quantizer.indices_per_position)
    bits = indices * math.log2(model.quantizer.codebook_size)
    return facts | {
        "tokens": {"size": size, "indices": indices, "bits_per_image": bits, "bits_per_pixel": bits / size**2}
    }


def measure_use(model: VQVAE, batches: Iterable[ImageBatch]) -> dict[str, Any]:
    """How images use the codes: usage and perplexity, and how many images could not be read."""
    assert model.quantizer is not None
    counter, skipped = CodeCounter(model.quantizer.codebook_size), 0
    for batch in batches:
        skipped += len(batch.skipped)
        if len(batch.images):
            counter.update(model.encode(to_float(batch.images)))
    return {
        "images": counter.images,
        "skipped": skipped,
        "indices": counter.indices,
        "codebook_size": counter.codebook_size,
        "usage": counter.usage(),
        "perplexity": counter.perplexity(),
    }


def read_run_config(run: Path | None) -> dict[str, Any] | None:
    """The settings that a run was started with, if they are there."""
    if run is None or not (run / CONFIG_FILE).is_file():
        return None
    return read_settings(run / CONFIG_FILE)


def summarise(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Steps, the last value of everything that was logged and the best of what has a direction."""
    if not records:
        return None
    last: dict[str, dict[str, float]] = {}
    best: dict[str, dict[str, float]] = {}
    for record in records:
        for name, value in _numbers(record).items():
            entry = {"value": value, "step": record["step"]}
            last[name] = entry
            kind = name.removeprefix("val/")
            has_direction = name.startswith("val/") and metric(kind).better is not None
            if has_direction and (name not in best or is_better(kind, value, best[name]["value"])):
                best[name] = entry
    shown = {name: entry for name, entry in last.items() if not name.startswith("drift/") and name != "epoch"}
    return {"steps": max(record["step"] for record in records), "last": shown, "best": best}


def drift_series(records: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]] | None:
    """Every value of the drift meter over training, as (step, value), and the codes in use as training counts them."""
    series: dict[str, list[tuple[int, float]]] = {}
    for name in DriftReading().to_dict():
        key = "train/usage" if name == "recent_usage" else f"drift/{name}"
        found = [(r["step"], _numbers(r)[key]) for r in records if key in _numbers(r)]
        if found:
            series[name] = found
    return series or None


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What is a number in a line of the log; null stands for what was not finite."""
    return {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float) and not isinstance(v, bool)}
