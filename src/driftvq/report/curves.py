"""The training curves of all cells, averaged over seeds and thinned for drawing."""

import math
from collections.abc import Sequence
from typing import Any

from driftvq.files import read_records
from driftvq.records.comparisons import Cell
from driftvq.records.metric_table import DRIFT, drift_label
from driftvq.report.results import Results, Row

MAX_POINTS = 300
MIN_POINTS = 40
BUDGET = 150_000
"""Points of all curves of a page together, as far as MIN_POINTS allows."""

QUALITY = (("usage", "Codes in use", True), ("psnr", "PSNR (dB)", False))
"""Curves of the training itself: what the last part of the key is, what it is called, whether it is a share."""

Curve = dict[int, list[float]]
"""The values of all seeds by step."""


def gather_curves(results: Results) -> dict[str, Any]:
    """Charts and their curves: mean, lowest and highest over seeds by step, thinned."""
    records = [
        (row, [read_records(cell.folder / "metrics.jsonl") for cell in row.cells if _started(cell)])
        for row in results.rows
    ]
    keys = list(dict.fromkeys(key for _, seeds in records for lines in seeds for line in lines for key in line))
    charts = [*_quality_charts(keys), *_drift_charts(keys)]
    curves = [(i, row, _by_step(seeds, chart["key"])) for i, chart in enumerate(charts) for row, seeds in records]
    curves = [(i, row, curve) for i, row, curve in curves if curve]
    limit = max(MIN_POINTS, min(MAX_POINTS, BUDGET // max(1, len(curves))))
    axes: dict[tuple[int, ...], int] = {}
    return {
        "charts": charts,
        "curves": [_drawn(i, row, curve, limit, axes, results) for i, row, curve in curves],
        "steps": [list(steps) for steps in axes],
    }


def thinned(n: int, limit: int) -> list[int]:
    """At most ``limit`` of n places, evenly spaced, the first and the last included."""
    if n <= limit:
        return list(range(n))
    return sorted({round(i * (n - 1) / (limit - 1)) for i in range(limit)})


def rounded(value: float, digits: int = 4) -> float:
    """A number to so many significant digits, which is what a drawing can show."""
    return float(f"{value:.{digits}g}")


def _started(cell: Cell) -> bool:
    return cell.status in ("done", "running", "failed")


def _quality_charts(keys: Sequence[str]) -> list[dict[str, Any]]:
    charts = []
    for name, label, percent in QUALITY:
        key = next((key for key in (f"val/{name}", f"train/{name}") if key in keys), None)
        if key is not None:
            where = "held-out images" if key.startswith("val/") else "training images"
            charts.append({"key": key, "kind": "quality", "label": label, "percent": percent, "where": where})
    return charts


def _drift_charts(keys: Sequence[str]) -> list[dict[str, Any]]:
    known = [f"drift/{name}" for name in DRIFT if f"drift/{name}" in keys and name != "interval"]
    others = sorted(key for key in keys if key.startswith("drift/") and key.removeprefix("drift/") not in DRIFT)
    return [{"key": key, "kind": "drift", "label": drift_label(key), "percent": False} for key in [*known, *others]]


def _by_step(seeds: Sequence[list[dict[str, Any]]], key: str) -> Curve:
    curve: Curve = {}
    for lines in seeds:
        last = {line["step"]: line[key] for line in lines if _finite(line.get(key))}
        for step, value in last.items():
            curve.setdefault(step, []).append(float(value))
    return dict(sorted(curve.items()))


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _drawn(
    chart: int, row: Row, curve: Curve, limit: int, axes: dict[tuple[int, ...], int], results: Results
) -> dict[str, Any]:
    all_steps = list(curve)
    steps = tuple(all_steps[i] for i in thinned(len(all_steps), limit))
    values = [curve[step] for step in steps]
    drawn: dict[str, Any] = {
        "chart": chart,
        "method": results.comparison.methods.index(row.method),
        "point": row.point,
        "steps": axes.setdefault(steps, len(axes)),
        "mean": [rounded(math.fsum(found) / len(found)) for found in values],
    }
    if any(len(found) > 1 for found in values):
        drawn |= {"low": [rounded(min(found)) for found in values], "high": [rounded(max(found)) for found in values]}
    return drawn
