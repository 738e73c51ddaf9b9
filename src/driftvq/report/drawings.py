"""Training curves, and how often codes are used and where they lie, small enough for a page."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median_high
from typing import Any, NamedTuple

from driftvq.files import read_records
from driftvq.records.comparisons import Codes, Point, read_codes
from driftvq.records.metric_table import DRIFT, OWN, drift_label, metric
from driftvq.records.runs import METRICS_FILE
from driftvq.report.results import Results, Row

MIN_POINTS, MAX_POINTS = 40, 300  # of a curve
BUDGET = 150_000  # points of all curves of a page together, as far as MIN_POINTS allows

QUALITY = {  # curves of the training itself: the metric, and what it is counted over
    "train/usage": ("usage", "share of the codes selected, or set by the start, in the last 100 training steps"),
    "val/usage": ("selected", "share of the codes that the validation images select"),
    "val/psnr": ("psnr", "on the validation images"),
}
WINDOW = 100  # training steps that usage is counted over
ALL_STARTED = "share of the codes selected so far; a k-means start sets all, so a collapse shows after 100 steps only"
FIRST_READINGS = 4  # readings of the drift meter that are seen at once

MAX_BARS = 200
POINTS = 120_000  # codes and latents of all maps of a page together
GRID = 1000  # places of a map are whole numbers up to this
CROSS = 20  # dead codes within a square of so many places share a cross

Curve = dict[int, list[float]]  # the values of all seeds by step


def gather_curves(results: Results) -> dict[str, Any]:
    """Charts and their curves: mean, lowest and highest over seeds by step, thinned."""
    begun = [(row, [cell.folder for cell in row.cells if cell.status != "waiting"]) for row in results.rows]
    records = [(row, [read_records(folder / METRICS_FILE) for folder in folders]) for row, folders in begun]
    keys = list(dict.fromkeys(key for _, seeds in records for lines in seeds for line in lines for key in line))
    charts = _charts(keys)
    curves = [(i, row, _by_step(seeds, chart["key"])) for i, chart in enumerate(charts) for row, seeds in records]
    curves = [(i, row, curve) for i, row, curve in curves if curve]
    counted = [step for i, _, curve in curves if charts[i]["key"] == "train/usage" for step in curve]
    if counted and max(counted) - min(counted) < WINDOW:
        charts[0]["where"] = ALL_STARTED
    limit = max(MIN_POINTS, min(MAX_POINTS, BUDGET // max(1, len(curves))))
    axes: dict[tuple[int, ...], int] = {}
    drawn = [_drawn(i, row, curve, limit, axes, results) for i, row, curve in curves]
    return {"charts": charts, "curves": drawn, "steps": [list(steps) for steps in axes]}


class Reached(NamedTuple):
    """A PSNR on the validation images, and the seconds of training after which a method has it; None: never."""

    level: float
    seconds: float | None


def times_to_level(results: Results) -> dict[tuple[str, Point], Reached]:
    """How long every method takes to the PSNR that half of those that compete at its place have in the end."""
    found = {}
    for point in results.points:
        rows = [(row, *_validated(row)) for row in results.rows if row.point == point]
        ends = [curve[max(curve)] for row, curve, _ in rows if curve and row.competes]
        if len(ends) > 1:
            level = median_high(ends)
            for row, curve, ms in rows:
                step = first_reach(curve, level)
                found[row.method.name, point] = Reached(level, None if step is None else step * ms / 1000)
    return found


def _validated(row: Row) -> tuple[dict[int, float], float]:
    """PSNR on the validation images by step, the mean over the finished seeds, and how many ms a step took."""
    cells = [cell for cell in row.done if cell.ms_per_step is not None]
    curve = _by_step([read_records(cell.folder / METRICS_FILE) for cell in cells], "val/psnr")
    means = {step: fmean(values) for step, values in curve.items() if len(values) == len(cells)}
    return means, fmean(cell.ms_per_step or 0.0 for cell in cells) if cells else 0.0


def first_reach(curve: Mapping[int, float], level: float) -> float | None:
    """The step at which a curve first reaches a level, on a straight line from the value before; None: nowhere."""
    before: tuple[int, float] | None = None
    for step, value in curve.items():
        if value >= level:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (level - before[1]) / (value - before[1])
        before = step, value
    return None


def thinned(n: int, limit: int) -> list[int]:
    """At most ``limit`` of n places, evenly spaced, the first and the last included."""
    if n <= limit:
        return list(range(n))
    return sorted({round(i * (n - 1) / (limit - 1)) for i in range(limit)})


def rounded(value: float, digits: int = 4) -> float:
    """A number to so many significant digits, which is what a drawing can show."""
    return float(f"{value:.{digits}g}")


def _charts(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Of the training, of how latents and codes move, and of what moves codes: drift followed, and relocations."""
    charts = []
    for key, (name, where) in QUALITY.items():
        if key in keys:
            label = "Selected by validation images" if name == "selected" else metric(name).heading
            chart: dict[str, Any] = {"key": key, "kind": "quality", "label": label, "where": where}
            charts.append(chart | {"percent": metric(name).percent, "usage": name == "usage"})
    own = [f"quantizer/{name}" for name in OWN if f"quantizer/{name}" in keys]
    known = [f"drift/{name}" for name in DRIFT if f"drift/{name}" in keys and name != "interval"]
    others = sorted(key for key in keys if key.startswith("drift/") and key.removeprefix("drift/") not in DRIFT)
    first = [*known[:FIRST_READINGS], *own]
    return charts + [
        {"key": key, "kind": "drift", "label": drift_label(key), "percent": False, "first": key in first}
        for key in (*first, *known[FIRST_READINGS:], *others)
    ]


def _by_step(seeds: Sequence[list[dict[str, Any]]], key: str) -> Curve:
    curve: Curve = {}
    for lines in seeds:
        found = [(line["step"], line[key]) for line in lines if type(line.get(key)) in (int, float)]
        for step, value in dict(pair for pair in found if math.isfinite(pair[1])).items():
            curve.setdefault(step, []).append(float(value))
    return dict(sorted(curve.items()))


def _drawn(
    chart: int, row: Row, curve: Curve, limit: int, axes: dict[tuple[int, ...], int], results: Results
) -> dict[str, Any]:
    all_steps = list(curve)
    steps = tuple(all_steps[i] for i in thinned(len(all_steps), limit))
    values = [curve[step] for step in steps]
    drawn: dict[str, Any] = {
        "chart": chart, "method": results.comparison.methods.index(row.method), "point": row.point,
        "steps": axes.setdefault(steps, len(axes)),
        "mean": [rounded(math.fsum(found) / len(found)) for found in values],
    }  # fmt: skip
    if any(len(found) > 1 for found in values):
        drawn |= {"low": [rounded(min(found)) for found in values], "high": [rounded(max(found)) for found in values]}
    return drawn


def gather_codes(results: Results) -> list[dict[str, Any]]:
    """For each row with codes its sorted counts, its map, and what images select, all of the first finished seed."""
    found = []
    for row in results.rows:
        read = ((cell.seed, read_codes(cell)) for cell in row.done)
        first = next(((row, seed, codes) for seed, codes in read if codes is not None and codes.counts), None)
        found += [] if first is None else [first]
    limit = max(100, POINTS // max(1, len(found)))
    return [_drawn_codes(row, seed, codes, limit, results) for row, seed, codes in found]


def _drawn_codes(row: Row, seed: int, codes: Codes, limit: int, results: Results) -> dict[str, Any]:
    counts, total = codes.counts, sum(codes.counts)
    shares = [count / total for count in counts if count > 0]
    alive, ordered = len(shares), sorted(counts, reverse=True)
    # Spread over the living codes, and where the dead begin: they show the shape of the sorted counts.
    ranks = sorted({*thinned(max(alive, 1), MAX_BARS), min(alive, len(counts) - 1), len(counts) - 1})
    return {
        "method": results.comparison.methods.index(row.method), "point": row.point, "seed": seed,
        "size": len(counts), "alive": alive, "total": total,
        "perplexity": round(math.exp(-math.fsum(p * math.log(p) for p in shares)), 1) if shares else 0.0,
        "state": row.state, "selected": row.values["selected"].mean if "selected" in row.values else None,
        "images": row.done[0].n, "reference": _reference(results, row),
        "ranks": ranks, "counts": [ordered[rank] for rank in ranks], "map": _map(codes, limit),
    }  # fmt: skip


def _reference(results: Results, row: Row) -> dict[str, Any] | None:
    """What the evaluated images select of the codes of a yardstick, such as k-means fitted afterwards."""
    for other in results.rows:
        if other.method.group == "reference" and other.point == row.point and "selected" in other.values:
            return None if other is row else {"label": other.method.label, "selected": other.values["selected"].mean}
    return None


def _map(codes: Codes, limit: int) -> dict[str, Any] | None:
    """Living codes, dead codes and latents on one whole-number grid; None if the file has no places."""
    points, numbers, latents = codes.points, codes.point_codes, codes.latents
    known = all(0 <= number < len(codes.counts) for number in numbers)
    if not points or len(numbers) != len(points) or not known or any(len(place) != 2 for place in (*points, *latents)):
        return None
    shown = thinned(len(points), max(50, limit * 4 // 5))
    latents = tuple(latents[i] for i in thinned(len(latents), max(50, limit // 5)))
    everything = [*(points[i] for i in shown), *latents]
    low_x, low_y = (min(place[axis] for place in everything) for axis in (0, 1))
    width, height = (max(place[axis] for place in everything) - low for axis, low in ((0, low_x), (1, low_y)))
    scale = GRID / (max(width, height) or 1.0)

    def grid(places: Sequence[Sequence[float]]) -> list[int]:
        return [n for x, y in places for n in (round((x - low_x) * scale), round((y - low_y) * scale))]

    counts = codes.counts
    return {
        "width": round(width * scale), "height": round(height * scale),
        "alive": grid([points[i] for i in shown if counts[numbers[i]] > 0]),
        "dead": _together(grid([points[i] for i in shown if counts[numbers[i]] <= 0])),
        "latents": grid(latents), "shown": len(shown),
    }  # fmt: skip


def _together(places: Sequence[int]) -> list[int]:
    """Places ``x, y, x, y, …`` as ``x, y, n, …``: the mean of those in one square, and how many they are."""
    squares: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for x, y in zip(places[::2], places[1::2], strict=True):
        squares.setdefault((x // CROSS, y // CROSS), []).append((x, y))
    means = [[round(math.fsum(axis) / len(some)) for axis in zip(*some, strict=True)] for some in squares.values()]
    return [number for place, some in zip(means, squares.values(), strict=True) for number in (*place, len(some))]
