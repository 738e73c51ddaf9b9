"""What is in a model and in the records of its training, and whether its codebook is alive.

Shape suffixes: k codes, d dimensions, b codes of one block.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftvq.data import ImageBatch, ImageSource, eval_batches, to_float
from driftvq.drift_meter import LEFT_BEHIND, MOVING, DriftReading
from driftvq.drift_meter.probing import parts_of, pending_starts
from driftvq.files import read_records
from driftvq.functional.blocks import row_blocks
from driftvq.metrics import CodeCounter
from driftvq.models import VQVAE, model_hash
from driftvq.models.vqvae import code_tensors, count_parameters
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.quantizer import Quantizer
from driftvq.records.codec import encode
from driftvq.records.metric_table import codebook_state, is_better, metric
from driftvq.records.runs import CONFIG_FILE, METRICS_FILE
from driftvq.training.settings import read_settings

DEFAULT_SIZE = 64
FALLING = 0.9  # usage is falling when it is below this share of its highest value
UNEVEN = 0.1  # perplexity below this share of the codes: a few of them do most of the work
DONE = "finished, or none wanted"  # what is said of a k-means start that nothing waits for
FEW = "few codes on these images"  # the state of a codebook of which nothing but the use by some images is known
RECENT = 100  # a code that was not selected in so many of the last training steps counts as dead
NEAR = 0.01  # codes nearer to each other than this share of the codes' spread say nearly the same
MAX_ROWS = 8192  # so many codes at most, evenly spaced, are asked for their neighbours


def inspect_model(
    model: VQVAE | None, run: Path | None, images: ImageSource | None = None, size: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Everything that is known about a model, or about a run that has not saved one yet, as plain values.

    The use of the codes is measured on ``images``, at most ``limit`` of them; ``size`` is their side, which the bits
    are given for, by default that of the run, or 64.
    """
    training_config = read_settings(run / CONFIG_FILE) if run and (run / CONFIG_FILE).is_file() else None
    size = size or int((training_config or {}).get("size") or DEFAULT_SIZE)
    report: dict[str, Any] = {"model": None, "codebook": None, "use": None}
    if model is not None:
        report |= {"model": _describe_model(model, size), "codebook": describe_codebook(model)}
        if images is not None and model.quantizer is not None:
            with eval_batches(images, size=size, batch_size=16, limit=limit) as batches:
                report["use"] = _measure_use(model, model.quantizer, batches)
    records = [] if run is None else read_records(run / METRICS_FILE)
    report |= {"training_config": training_config, "training": summarise(records), "drift": drift_series(records)}
    plain: dict[str, Any] = encode(report | {"verdict": give_verdict(report)})
    return plain


def _describe_model(model: VQVAE, size: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"config": model.config.to_dict(), "hash": model_hash(model)}
    facts |= {"parameters": count_parameters(model), "downscale": model.downscale}
    facts["not_finite"] = [name for name, value in model.state_dict().items() if not value.isfinite().all()]
    if model.quantizer is not None:
        width = (model.quantizer.indices_per_position,) if model.quantizer.indices_per_position else ()
        image = CodeCounter(model.quantizer)
        image.update(torch.zeros(1, *model.grid_size((size, size)), *width, dtype=torch.int64))
        bits = image.bits_per_image()
        sizes = {"bits_per_image": bits, "bits_per_pixel": bits / size**2}
        facts["tokens"] = {"size": size, "indices": image.indices, **sizes}
    return facts


def _measure_use(model: VQVAE, quantizer: Quantizer, batches: Iterable[ImageBatch]) -> dict[str, Any]:
    """How images use the codes: usage and perplexity, and how many images could not be read."""
    counter, skipped = CodeCounter(quantizer), 0
    for batch in batches:
        skipped += len(batch.skipped)
        if len(batch.images):
            counter.update(model.encode(to_float(batch.images)))
    seen = {"images": counter.images, "skipped": skipped, "indices": counter.indices}
    found = {"usage": counter.usage(), "perplexity": counter.perplexity(), "expected_usage": counter.expected_usage()}
    return seen | {"codebook_size": quantizer.codebook_size} | found


def summarise(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Steps, the last value of everything that was logged and the best of what has a direction."""
    if not records:
        return None
    last, best = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    for record in records:
        for name, value in _numbers(record).items():
            last[name] = entry = {"value": value, "step": record["step"]}
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


def give_verdict(report: Mapping[str, Any]) -> dict[str, str]:
    """The state of a codebook, such as ``alive``, ``collapsing`` or ``unknown``, and the reason."""
    codebook, use = report.get("codebook") or {}, report.get("use")
    broken = (report.get("model") or {}).get("not_finite")
    if broken:
        return {"state": "broken", "why": f"NaN or infinite numbers in {', '.join(broken[:3])}"}
    if report.get("model") is not None and report.get("codebook") is None:
        return {"state": "no codebook", "why": "this is a plain autoencoder; it has no codes that could die"}
    start = codebook.get("kmeans_start")
    if start is not None and start != DONE:
        return {"state": "starting", "why": f"the k-means start is not finished ({start})"}
    trained, when = _trained_usage(report)
    if trained is None and use is None:
        return {"state": "unknown", "why": "nothing recorded says how the codes are used; measure it with --data"}
    drift: Mapping[str, Sequence[tuple[int, float]]] = report.get("drift") or {}
    usage = drift.get("recent_usage") or []
    falling = len(usage) >= 3 and usage[-1][1] < FALLING * max(value for _, value in usage[:-1])
    state, reasons = FEW, []
    if trained is not None:
        state = codebook_state(trained)
        state = "collapsing" if state == "partly used" and falling else state
        reasons.append(f"{_percent(trained)} of the codes were selected {when}")
    if use is not None:
        possible = use["expected_usage"]
        if codebook_state(use["usage"], possible) == "alive":  # a code that is selected is not dead, whoever selects it
            state = "alive"
        best = f", where {possible:.0%} could be expected of equally used codes" if possible < 0.95 else ""
        reasons.append(f"these {use['images']:,} images select {_percent(use['usage'])} of the codes{best}")
    if state == FEW:
        reasons.append("whether the others are dead, only images like those of its training can say")
    if falling:
        peak_step, peak = max(usage, key=lambda entry: entry[1])
        reasons.append(f"it was {peak:.0%} at step {peak_step:,}")
    if use is not None and use["perplexity"] < UNEVEN * use["codebook_size"]:
        reasons.append(f"there, a few do most of the work (perplexity {use['perplexity']:.0f})")
    if codebook.get("near_repeats"):
        reasons.append(f"{codebook['near_repeats']:,} codes nearly repeat another")
    if drift.get("follow_unselected") and drift.get("latents_moved"):
        follow, moved = (drift[name][-1][1] for name in ("follow_unselected", "latents_moved"))
        effect = "are left behind by" if follow < LEFT_BEHIND else "follow"
        if moved < MOVING:
            reasons.append("the encoder hardly moves any more")
        elif follow >= LEFT_BEHIND or state != "alive":
            shown = f"(follow {round(follow, 2) + 0.0:.2f})"
            reasons.append(f"codes that are not selected {effect} the moving encoder {shown}")
    return {"state": state, "why": "; ".join(reasons)}


def _trained_usage(report: Mapping[str, Any]) -> tuple[float | None, str]:
    """The share of codes that training selected, and when; None if nothing says."""
    recent = (report.get("codebook") or {}).get("recent_usage")
    if recent is not None:
        return recent, f"in the model's last {min(RECENT, report['codebook']['training_steps'])} training steps"
    last = (report.get("training") or {}).get("last") or {}
    for name, where in (("train/usage", f"in the last {RECENT} training steps"), ("val/usage", "by validation images")):
        if name in last:
            return last[name]["value"], where
    return None, ""


def _percent(share: float) -> str:
    return f"{share:.{0 if share >= 0.1 else 1}%}"


def neighbour_distances(codebook_kd: Tensor, rows_b: Tensor) -> Tensor:
    """Distance of the given codes to the nearest *other* code, ``(b,)``; exactly 0 for a repeated code."""
    centred_kd = (codebook_kd - codebook_kd.mean(dim=0)).double()
    half_k = centred_kd.square().sum(dim=1) / 2
    found = []
    for block in row_blocks(len(rows_b), len(codebook_kd), codebook_kd.device):
        rows = rows_b[block]
        score_bk = centred_kd[rows] @ centred_kd.t() - half_k
        score_bk[torch.arange(len(rows)), rows] = -torch.inf
        found.append((codebook_kd[rows] - codebook_kd[score_bk.argmax(dim=1)]).double().norm(dim=1))
    return torch.cat(found)


@torch.no_grad()
def describe_codebook(model: VQVAE) -> dict[str, Any] | None:
    """Size, lengths, neighbours, age and start of a model's codebook; None for a plain autoencoder."""
    quantizer = model.quantizer
    if quantizer is None:
        return None
    parts = parts_of(quantizer)
    facts: dict[str, Any] = {"codes": quantizer.codebook_size, "dim": parts[0].codebook_dim}
    facts |= {"indices_per_position": max(1, quantizer.indices_per_position)}
    facts |= {"learned": len(code_tensors(quantizer)) == len(parts), "kmeans_start": None}
    if any(isinstance(part, CodebookQuantizer) for part in parts):
        waiting = pending_starts(quantizer)
        gathering = [f"gathering, {len(start.pending)} of {start.needed} latents" for start in waiting]
        facts["kmeans_start"] = gathering[0] if waiting else DONE
    if facts["learned"]:
        facts |= _geometry([part.codebook.detach().float().cpu() for part in parts])
    facts["training_steps"] = steps = int(quantizer.step)
    if steps == 0:
        return facts | {"age": None, "dead_codes": None, "recent_usage": None}
    age = torch.cat([part.code_age for part in parts]).cpu()
    dead = int((age >= min(RECENT, steps)).sum())
    summary = _quantiles(age, {"median": 0.5, "p90": 0.9, "max": 1.0})
    return facts | {"age": summary, "dead_codes": dead, "recent_usage": 1 - dead / len(age)}


def _geometry(books: list[Tensor]) -> dict[str, Any]:
    quantiles = {"min": 0.0, "median": 0.5, "max": 1.0}
    facts: dict[str, Any] = {"norm": _quantiles(torch.cat([book.norm(dim=1) for book in books]), quantiles)}
    distances, near = [], 0
    for book in books:
        if len(book) < 2:
            continue
        distance = neighbour_distances(book, torch.linspace(0, len(book) - 1, min(len(book), MAX_ROWS)).long())
        spread = (book - book.mean(dim=0)).double().square().sum(dim=1).mean().sqrt()
        near += int((distance <= NEAR * spread).sum())
        distances.append(distance)
    if distances:
        together = torch.cat(distances)
        facts["neighbour_distance"] = _quantiles(together, quantiles)
        facts |= {"neighbours_asked": len(together), "repeated_codes": int((together == 0).sum()), "near_repeats": near}
    return facts


def _quantiles(values: Tensor, names: Mapping[str, float]) -> dict[str, float]:
    found = values.double().quantile(torch.tensor(list(names.values()), dtype=torch.double))
    return dict(zip(names, found.tolist(), strict=True))
