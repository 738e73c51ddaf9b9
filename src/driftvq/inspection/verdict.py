"""Is a codebook alive? One sentence from what is known."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

ALIVE, COLLAPSED = 0.8, 0.2
"""Usage above the first: alive; below the second: collapsed."""
FALLING = 0.9
"""Usage is falling when it is below this share of its highest value."""
LEFT_BEHIND = 0.3
"""Codes that follow the latents by less are left behind."""
MOVING = 0.05
"""Latents that move by less than this share of their spread between two readings hardly move."""
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


def expected_usage(codes: int, draws: int) -> float:
    """Share of equally likely codes that so many draws hit: what usage can be expected to reach at best."""
    return -math.expm1(draws * math.log1p(-1 / codes)) if codes > 1 else 1.0


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
