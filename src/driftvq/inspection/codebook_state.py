"""What a codebook looks like by itself, and whether it is alive: one sentence from what is known.

Shape suffixes: k codes, d dimensions, b codes of one block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from driftvq.drift_meter import LEFT_BEHIND, MOVING
from driftvq.drift_meter.probing import parts_of, pending_starts
from driftvq.functional.blocks import row_blocks
from driftvq.models import VQVAE
from driftvq.models.vqvae import code_tensors
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.quantizer import Quantizer
from driftvq.records.metric_table import codebook_state, expected_usage

FALLING = 0.9
"""Usage is falling when it is below this share of its highest value."""
UNEVEN = 0.1
"""Perplexity below this share of the codes: a few of them do most of the work."""

DONE = "finished, or none wanted"
"""What is said of a k-means start that nothing waits for."""

FEW = "few codes on these images"
"""The state of a codebook of which nothing but the use by some images is known."""

Series = Sequence[tuple[int, float]]


def give_verdict(report: Mapping[str, Any]) -> dict[str, str]:
    """The state of a codebook, such as ``alive``, ``collapsing`` or ``unknown``, and the reason."""
    codebook = report.get("codebook")
    broken = (report.get("model") or {}).get("not_finite")
    if broken:
        return {"state": "broken", "why": f"NaN or infinite numbers in {', '.join(broken[:3])}"}
    if report.get("model") is not None and codebook is None:
        return {"state": "no codebook", "why": "this is a plain autoencoder; it has no codes that could die"}
    start = (codebook or {}).get("kmeans_start")
    if start is not None and start != DONE:
        return {"state": "starting", "why": f"the k-means start is not finished ({start})"}
    trained, use = _trained_usage(report), report.get("use")
    if trained is None and use is None:
        return {"state": "unknown", "why": "nothing recorded says how the codes are used; measure it with --data"}
    state = _state(None if trained is None else trained[0], report)
    reasons = [] if trained is None else [f"{_percent(trained[0])} of the codes were selected {trained[1]}"]
    reasons += _seen(report)
    if state == FEW:
        reasons.append("whether the others are dead, only images like those of its training can say")
    return {"state": state, "why": "; ".join([*reasons, *_reasons(state, report)])}


def _state(trained: float | None, report: Mapping[str, Any]) -> str:
    """By training or by the images that were looked at, whichever shows more: a code that is selected is not dead."""
    use = report.get("use")
    if use is not None and codebook_state(use["usage"], _possible(report)) == "alive":
        return "alive"
    if trained is None:
        return FEW
    state = codebook_state(trained)
    return "collapsing" if state == "partly used" and _falling(report) else state


def _trained_usage(report: Mapping[str, Any]) -> tuple[float, str] | None:
    """The share of codes that training selected, and when; None if nothing says."""
    recent = (report.get("codebook") or {}).get("recent_usage")
    if recent is not None:
        return recent, f"in the model's last {min(RECENT, report['codebook']['training_steps'])} training steps"
    last = (report.get("training") or {}).get("last") or {}
    for name, where in (("train/usage", f"in the last {RECENT} training steps"), ("val/usage", "by validation images")):
        if name in last:
            return last[name]["value"], where
    return None


def _possible(report: Mapping[str, Any]) -> float:
    """The share that as many latents as were looked at select of equally likely codes."""
    use, places = report["use"], max(1, (report.get("codebook") or {}).get("indices_per_position", 1))
    return expected_usage(use["codebook_size"], use["indices"] // places)


def _seen(report: Mapping[str, Any]) -> list[str]:
    """What the images that were looked at select."""
    use = report.get("use")
    if use is None:
        return []
    possible = _possible(report)
    best = f", where {possible:.0%} could be expected of equally used codes" if possible < 0.95 else ""
    return [f"these {use['images']:,} images select {_percent(use['usage'])} of the codes{best}"]


def _percent(share: float) -> str:
    return f"{share:.{0 if share >= 0.1 else 1}%}"


def _falling(report: Mapping[str, Any]) -> bool:
    series: Series = (report.get("drift") or {}).get("recent_usage") or []
    return len(series) >= 3 and series[-1][1] < FALLING * max(value for _, value in series[:-1])


def _reasons(state: str, report: Mapping[str, Any]) -> list[str]:
    drift: Mapping[str, Series] = report.get("drift") or {}
    latest = {name: series[-1][1] for name, series in drift.items() if series}
    reasons = []
    if _falling(report):
        peak_step, peak = max(drift["recent_usage"], key=lambda entry: entry[1])
        reasons.append(f"it was {peak:.0%} at step {peak_step:,}")
    use, codebook = report.get("use"), report.get("codebook") or {}
    if use is not None and use["perplexity"] < UNEVEN * use["codebook_size"]:
        reasons.append(f"there, a few do most of the work (perplexity {use['perplexity']:.0f})")
    if codebook.get("near_repeats"):
        reasons.append(f"{codebook['near_repeats']:,} codes nearly repeat another")
    follow, moved = latest.get("follow_unselected"), latest.get("latents_moved")
    if follow is None or moved is None:
        return reasons
    if moved < MOVING:
        return [*reasons, "the encoder hardly moves any more"]
    behind = follow < LEFT_BEHIND
    if behind and state == "alive":
        return reasons
    effect = "are left behind by" if behind else "follow"
    return [*reasons, f"codes that are not selected {effect} the moving encoder (follow {round(follow, 2) + 0.0:.2f})"]


RECENT = 100
"""A code that was not selected in so many of the last training steps counts as dead."""
NEAR = 0.01
"""Codes nearer to each other than this share of the codes' spread say nearly the same."""
MAX_ROWS = 8192
"""So many codes at most, evenly spaced, are asked for their neighbours."""


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


def describe_codebook(model: VQVAE) -> dict[str, Any] | None:
    """Size, lengths, neighbours, age and start of a model's codebook; None for a plain autoencoder."""
    quantizer = model.quantizer
    if quantizer is None:
        return None
    parts = parts_of(quantizer)
    places = max(1, quantizer.indices_per_position)
    learned = len(code_tensors(quantizer)) == len(parts)
    facts: dict[str, Any] = {
        "codes": quantizer.codebook_size,
        "dim": parts[0].codebook_dim,
        "indices_per_position": places,
        "learned": learned,
        "kmeans_start": _start(quantizer),
    }
    with torch.no_grad():
        if learned:
            facts |= _geometry([part.codebook.detach().float().cpu() for part in parts])
    return facts | _ages(quantizer, parts)


def _geometry(books: list[Tensor]) -> dict[str, Any]:
    norms = torch.cat([book.norm(dim=1) for book in books])
    distances, near, asked = [], 0, 0
    for book in books:
        if len(book) < 2:
            continue
        rows = torch.linspace(0, len(book) - 1, min(len(book), MAX_ROWS)).long()
        distance = neighbour_distances(book, rows)
        spread = (book - book.mean(dim=0)).double().square().sum(dim=1).mean().sqrt()
        near += int((distance <= NEAR * spread).sum())
        asked += len(rows)
        distances.append(distance)
    facts: dict[str, Any] = {"norm": _summary(norms)}
    if distances:
        together = torch.cat(distances)
        facts["neighbour_distance"] = _summary(together)
        facts |= {"neighbours_asked": asked, "repeated_codes": int((together == 0).sum()), "near_repeats": near}
    return facts


def _ages(quantizer: Quantizer, parts: list[Quantizer]) -> dict[str, Any]:
    steps = int(quantizer.step)
    if steps == 0:
        return {"training_steps": 0, "age": None, "dead_codes": None, "recent_usage": None}
    age = torch.cat([part.code_age for part in parts]).cpu()
    dead = int((age >= min(RECENT, steps)).sum())
    quantiles = age.double().quantile(torch.tensor([0.5, 0.9, 1.0], dtype=torch.double)).tolist()
    return {
        "training_steps": steps,
        "age": dict(zip(("median", "p90", "max"), quantiles, strict=True)),
        "dead_codes": dead,
        "recent_usage": 1 - dead / len(age),
    }


def _start(quantizer: Quantizer) -> str | None:
    """Whether a k-means start is over; None where a quantizer cannot have one."""
    if not any(isinstance(part, CodebookQuantizer) for part in parts_of(quantizer)):
        return None
    waiting = pending_starts(quantizer)
    return f"gathering, {len(waiting[0].pending)} of {waiting[0].needed} latents" if waiting else DONE


def _summary(values: Tensor) -> dict[str, float]:
    quantiles = values.double().quantile(torch.tensor([0.0, 0.5, 1.0], dtype=torch.double))
    return dict(zip(("min", "median", "max"), quantiles.tolist(), strict=True))
