"""Everything that the page shows of a comparison, as plain values; the page only draws them."""

from typing import Any

from driftvq.records.metric_table import GROUP_LABELS, metric, written, written_p, written_spread
from driftvq.report.codes import gather_codes
from driftvq.report.curves import gather_curves, rounded
from driftvq.report.published import gather_paper
from driftvq.report.results import Results, Row
from driftvq.report.sentence import answer
from driftvq.report.strips import gather_strips
from driftvq.report.tables import ARROWS, column_decimals, column_size

ABOUT = ("name", "recipe", "title", "scale", "question", "command", "created", "seeds", "notes")


def comparison_payload(results: Results, image_budget: int) -> dict[str, Any]:
    """What the page needs to know.

    Args:
        results: of the comparison.
        image_budget: bytes that its images may take.
    """
    comparison = results.comparison
    sweep = comparison.sweep
    payload: dict[str, Any] = {key: getattr(comparison, key) for key in ABOUT}
    payload |= {"folder": str(comparison.folder), "answer": answer(results)._asdict()}
    payload |= {"sweep": sweep and {"field": sweep.field, "label": sweep.label, "values": sweep.values}}
    payload |= {"points": results.points, "lead": results.lead, "cells": len(comparison.cells)}
    payload["methods"] = [
        {"name": method.name, "label": method.label, "group": method.group, "groupLabel": GROUP_LABELS[method.group]}
        for method in comparison.methods
    ]
    digits = column_decimals(results)
    payload["columns"] = [_column(results, name, digits[name]) for name in results.columns]
    payload["rows"] = [_row(results, row, digits) for row in results.rows]
    payload["missing"] = sorted({text for cell in comparison.cells for text in cell.missing})
    payload |= {"training": gather_curves(results), "codes": gather_codes(results)}
    payload |= {"strips": gather_strips(results, image_budget), "paper": gather_paper(results)}
    payload["facts"] = {
        "Data": comparison.data,
        "Environment": comparison.environment,
        "Shared settings": comparison.config,
    }
    payload["configs"] = [_config(row) for row in results.rows if row.cells[0].config]
    return payload


def _column(results: Results, name: str, digits: int) -> dict[str, Any]:
    known = metric(name)
    column: dict[str, Any] = {"name": name, "label": known.label, "size": column_size(results, name)}
    return column | {
        "better": known.better,
        "extra": name not in results.comparison.metrics,
        "heading": f"{known.label} {ARROWS[known.better]}".rstrip(),
        "percent": known.percent,
        "digits": digits,
        "meaning": known.meaning,
    }


def _row(results: Results, row: Row, digits: dict[str, int]) -> dict[str, Any]:
    counts = {status: sum(cell.status == status for cell in row.cells) for status in ("running", "waiting")}
    return {
        "method": results.comparison.methods.index(row.method),
        "point": row.point,
        "rank": row.rank,
        "values": {name: _value(results, row, name, digits[name]) for name in results.columns if name in row.values},
        "verdict": _verdict(row, results.lead),
        "collapsed": row.collapsed,
        "done": len(row.done),
        "seeds": len(row.cells),
        "unfinished": ", ".join(f"{n} {status}" for status, n in counts.items() if n),
        "failed": [{"seed": cell.seed, "error": cell.error, "log": str(cell.log_path)} for cell in row.failed],
        "cost": _cost(row),
    }


def _value(results: Results, row: Row, name: str, digits: int) -> dict[str, Any]:
    mean, spread, n = row.values[name]
    value: dict[str, Any] = {"mean": rounded(mean, 8), "spread": spread and rounded(spread), "n": n}
    value |= {
        "text": written(name, mean, digits),
        "spreadText": None if spread is None else written_spread(name, spread, digits),
    }
    return value | {"mark": results.mark(row, name)}


def _verdict(row: Row, lead: str) -> str:
    """How a row compares with the best in the lead metric."""
    if lead not in row.values:
        return ""
    if row.rank is None:
        return "not ranked, no codes"
    if row.rank == 1:
        return "best"
    if row.within_spread is None:
        return "one seed: no spread"
    p = f", {written_p(row.test.p)}" if row.test is not None and row.test.p is not None else ""
    return f"{'within' if row.within_spread else 'beyond'} the spread{p}"


def _cost(row: Row) -> dict[str, float | None]:
    parameters = row.done[0].parameters if row.done else {}
    times = [cell.seconds["train"] for cell in row.done if "train" in cell.seconds]
    return {
        "ms": row.mean_of("ms_per_step"),
        "memory": row.mean_of("peak_memory_mb"),
        "network": parameters.get("network"),
        "quantizer": parameters.get("quantizer"),
        "train": sum(times) / len(times) if times else None,
    }


def _config(row: Row) -> dict[str, Any]:
    return {"label": row.method.label, "point": row.point, "config": row.cells[0].config}
