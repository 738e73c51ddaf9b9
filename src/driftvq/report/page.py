"""The report: one HTML file with everything in it."""

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from driftvq.files import write_text
from driftvq.records.codec import encode
from driftvq.records.comparisons import GROUP_LABELS
from driftvq.records.metric_table import COLLAPSED, metric, written, written_p, written_spread
from driftvq.records.runs import RUN, load_results
from driftvq.report.drawings import Reached, gather_codes, gather_curves, rounded, times_to_level
from driftvq.report.results import Results, Row, aggregate
from driftvq.report.strips import gather_strips
from driftvq.report.tables import ABOUT, ARROWS, column_size, results_table
from driftvq.report.words import answer, counted, gather_paper

REPORT_FILE = "report.html"
# In the order in which they are loaded.
SCRIPTS = ("dom.js", "state.js", "chart.js", "table.js", "training.js", "codes.js", "strips.js", "facts.js", "page.js")
MAX_BYTES, IMAGE_BYTES = 10_000_000, 5_000_000  # of a page, and of its images together


def write_report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> Path:
    """Build the report of one comparison or run, or of several side by side, from what is on disk; returns the file.

    By default it is ``report.html`` in the folder, or for several here.
    """
    chosen = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not chosen:
        raise ValueError("a report needs at least one folder of a comparison or a run; received none")
    if out is None:
        out = Path(chosen[0]) / REPORT_FILE if len(chosen) == 1 else Path(REPORT_FILE)
    return write_text(out, render([aggregate(load_results(folder)) for folder in chosen]))


def render(comparisons: Sequence[Results]) -> str:
    """The page of one comparison or several, whose images are made smaller until it is under MAX_BYTES."""
    budget = IMAGE_BYTES
    while True:
        content = _page(comparisons, budget).encode("utf-8", "replace")  # half a character, as in a file's odd name
        if len(content) < MAX_BYTES or budget == 0:
            return content.decode()
        budget = budget // 2 if budget > 500_000 else 0


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or a line of JavaScript."""
    text = json.dumps(encode(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _page(comparisons: Sequence[Results], budget: int) -> str:
    payloads = [comparison_payload(results, budget // len(comparisons)) for results in comparisons]
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in SCRIPTS)
    title = comparisons[0].comparison.title if len(comparisons) == 1 else f"{len(comparisons)} comparisons side by side"
    parts = {"title": html.escape(f"{title} · driftvq"), "style": style, "script": script}
    allowed = f"img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    parts["policy"] = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    shown = [(html.escape(str(answer(results))), html.escape(results_table(results))) for results in comparisons]
    parts["plain"] = "\n".join(f"<p>{text}</p>\n<pre>{table}</pre>" for text, table in shown)  # without JavaScript
    parts["data"] = embed_json({"title": title, "collapsed": COLLAPSED, "comparisons": payloads})
    pieces = _asset("page.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def comparison_payload(results: Results, image_budget: int) -> dict[str, Any]:
    """What the page needs to know; its images may take so many bytes."""
    comparison, reached = results.comparison, times_to_level(results)
    facts = {"Data": comparison.data, "Environment": comparison.environment, "Shared settings": comparison.config}
    configs = [(row, row.cells[0].config) for row in results.rows if row.cells[0].config]
    return {
        **{key: getattr(comparison, key) for key in ABOUT},
        "notes": [*comparison.notes, *counted(results)], "folder": str(comparison.folder),
        "answer": answer(results)._asdict(), "single": comparison.recipe == RUN,
        "points": results.points, "lead": results.lead, "cells": len(comparison.cells),
        "methods": [encode(method) | {"groupLabel": GROUP_LABELS[method.group]} for method in comparison.methods],
        "columns": [_column(results, name) for name in results.columns],
        "rows": [_row(results, row, reached.get((row.method.name, row.point))) for row in results.rows],
        "missing": sorted({text for cell in comparison.cells for text in cell.missing}),
        "training": gather_curves(results), "codes": gather_codes(results),
        "strips": gather_strips(results, image_budget), "paper": gather_paper(results), "facts": facts,
        "configs": [{"label": row.method.label, "point": row.point, "config": config} for row, config in configs],
    }  # fmt: skip


def _column(results: Results, name: str) -> dict[str, Any]:
    known = metric(name)
    return {
        "name": name, "label": known.heading, "size": column_size(results, name), "better": known.better,
        "extra": name not in results.comparison.metrics, "heading": f"{known.heading} {ARROWS[known.better]}".rstrip(),
        "percent": known.percent, "digits": results.digits[name], "meaning": known.meaning,
    }  # fmt: skip


def _row(results: Results, row: Row, reached: Reached | None) -> dict[str, Any]:
    counts = {status: sum(cell.status == status for cell in row.cells) for status in ("running", "waiting")}
    return {
        "method": results.comparison.methods.index(row.method), "point": row.point, "rank": row.rank,
        "values": {name: _value(results, row, name) for name in results.columns if name in row.values},
        "verdict": _verdict(row, results.lead), "state": row.state,
        "done": len(row.done), "seeds": len(row.cells),
        "unfinished": ", ".join(f"{n} {status}" for status, n in counts.items() if n),
        "failed": [{"seed": cell.seed, "error": cell.error, "log": str(cell.log_path)} for cell in row.failed],
        "cost": {
            "ms": row.mean_of("ms_per_step"), "memory": row.mean_of("peak_memory_mb"),
            **{kind: row.done[0].parameters.get(kind) if row.done else None for kind in ("network", "quantizer")},
            "train": row.train_seconds, "level": reached and reached.level, "reach": reached and reached.seconds,
        },
    }  # fmt: skip


def _value(results: Results, row: Row, name: str) -> dict[str, Any]:
    (mean, spread, n), digits = row.values[name], results.digits[name]
    return {
        "mean": rounded(mean, 8), "spread": spread and rounded(spread), "n": n, "text": written(name, mean, digits),
        "spreadText": None if spread is None else written_spread(name, spread, digits),
        "mark": results.mark(row, name),
    }  # fmt: skip


def _verdict(row: Row, lead: str) -> str:
    if lead not in row.values:
        return ""
    if row.rank is None:
        return "a reference, not ranked" if row.method.group == "reference" else "not ranked, no codes"
    if row.rank == 1:
        return "best"
    if row.within_spread is None:
        return "one seed: no spread"
    p = f", {written_p(row.test.p)}" if row.test is not None and row.test.p is not None else ""
    return f"{'within' if row.within_spread else 'beyond'} the spread{p}"
