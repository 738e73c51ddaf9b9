"""What a codebook looks like by itself, and whether it is alive: one sentence from what is known.

Shape suffixes: k codes, d dimensions, b codes of one block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from driftvq.drift_meter import ALIVE, COLLAPSED, LEFT_BEHIND, MOVING, expected_usage
from driftvq.drift_meter.probing import parts_of, pending_starts
from driftvq.functional.blocks import row_blocks
from driftvq.models import VQVAE
from driftvq.models.vqvae import code_tensors
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.quantizer import Quantizer

FALLING = 0.9
"""Usage is falling when it is below this share of its highest value."""
UNEVEN = 0.1
"""Perplexity below this share of the codes: a few of them do most of the work."""

DONE = "finished, or none wanted"
"""What is said of a k-means start that nothing waits for."""

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
    share, source = _usage(report)
    if share is None:
        return {"state": "unknown", "why": "nothing recorded says how the codes are used; measure it with --data"}
    state = _state(share, report)
    reasons = [f"{share:.{0 if share >= 0.1 else 1}%} of the codes are in use {source}", *_reasons(state, report)]
    return {"state": state, "why": "; ".join(reasons)}


def _usage(report: Mapping[str, Any]) -> tuple[float | None, str]:
    """The most telling share of codes in use, and where it comes from."""
    use = report.get("use")
    if use is not None:
        places = max(1, (report.get("codebook") or {}).get("indices_per_position", 1))
        possible = expected_usage(use["codebook_size"], use["indices"] // places)
        if possible < 0.95:
            source = f"on the {use['images']} images, where {possible:.0%} could be expected of equally used codes"
        else:
            source = f"on the {use['images']} images"
        return use["usage"], source
    recent = (report.get("codebook") or {}).get("recent_usage")
    if recent is not None:
        return recent, f"in the model's last {min(100, report['codebook']['training_steps'])} training steps"
    last = ((report.get("training") or {}).get("last") or {}).get("val/usage")
    return (None, "") if last is None else (last["value"], "on the validation images")


def _state(share: float, report: Mapping[str, Any]) -> str:
    use = report.get("use")
    if use is not None:
        places = max(1, (report.get("codebook") or {}).get("indices_per_position", 1))
        share = min(1.0, share / expected_usage(use["codebook_size"], use["indices"] // places))
    if share >= ALIVE:
        return "alive"
    if share < COLLAPSED:
        return "collapsed"
    return "collapsing" if _falling(report) else "partly used"


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
        reasons.append(f"a few of them do most of the work (perplexity {use['perplexity']:.0f})")
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
