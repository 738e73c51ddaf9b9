"""The table of a comparison in the forms that people paste and programs read."""

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftvq.files import write_text
from driftvq.names import check_name
from driftvq.records.codec import FORMAT, encode
from driftvq.records.comparisons import Comparison
from driftvq.records.metric_table import metric, written, written_spread
from driftvq.records.runs import RUN, load_results
from driftvq.report.results import Results, Row, aggregate
from driftvq.report.words import answer, counted

RESULTS_FILES = "results.json", "results.csv"
SEED_KEYS = (  # what the JSON says of each cell
    *("seed", "status", "error", "values", "n", "usage_over", "usage_latents", "missing", "codebook_size", "code_dim"),
    *("seconds", "steps", "ms_per_step", "peak_memory_mb", "parameters"),
)
# What readers are told of a comparison.
ABOUT = ("name", "recipe", "title", "scale", "question", "command", "created", "seeds", "sweep")
ARROWS = {"lower": "↓", "higher": "↑", None: ""}


def results_table(comparison: Comparison | Results, format: str = "markdown") -> str:  # noqa: A002
    """The table of a comparison, ready to paste: "markdown", "csv", "json" or "latex" (needs the package booktabs)."""
    results = comparison if isinstance(comparison, Results) else aggregate(comparison)
    return FORMATS[check_name("format", format, FORMATS)](results)


def write_results(folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``results.json`` and ``results.csv`` of a comparison or run into its folder, each whole or not at all."""
    results = aggregate(load_results(folder))
    json_file, csv_file = (Path(folder) / name for name in RESULTS_FILES)
    return write_text(json_file, results_table(results, "json")), write_text(csv_file, results_table(results, "csv"))


def column_size(results: Results, name: str) -> str:
    """The number of images behind a value that depends on it; empty for other metrics."""
    sized = ("rfid", "kid") if results.comparison.recipe == RUN else ("rfid", "kid", "selected")  # of a run: validation
    counts = {cell.n for row in results.rows for cell in row.done if name in cell.values and cell.n is not None}
    return f"n = {counts.pop()}" if name in sized and len(counts) == 1 else ""


def _headings(results: Results) -> list[str]:
    headings = ["Method", *([results.comparison.sweep.label] if results.comparison.sweep else [])]
    for name in results.columns:
        size = column_size(results, name)
        headings.append(f"{metric(name).heading}{f', {size}' if size else ''} {ARROWS[metric(name).better]}".rstrip())
    return [*headings, "Training (s)", "Seeds"]


def _text_rows(results: Results, escape: Callable[[str], str], strong: str) -> list[list[str]]:
    """The cells of the table as text; ``strong`` is how the best value is told, which stands at its …."""
    rows = []
    for row in results.rows:
        cells = [escape(row.method.label)]
        if results.comparison.sweep:
            cells.append(escape("any" if row.point is None else str(row.point)))
        cells += [_value(results, row, name, escape, strong) for name in results.columns]
        cells.append(escape("–" if row.train_seconds is None else f"{row.train_seconds:.0f}"))
        cells.append(f"{len(row.done)}" if len(row.done) == len(row.cells) else f"{len(row.done)} of {len(row.cells)}")
        rows.append(cells)
    return rows


def _value(results: Results, row: Row, name: str, escape: Callable[[str], str], strong: str) -> str:
    if name not in row.values:
        return "failed" if row.failed and not row.done else escape("–")
    (mean, spread, _), digits, mark = row.values[name], results.digits[name], results.mark(row, name)
    text = escape(written(name, mean, digits))
    parts = [strong.replace("…", text) if mark == "best" else text]
    parts += [] if spread is None else [escape(f"± {written_spread(name, spread, digits)}")]
    return " ".join([*parts, escape("≈")] if mark == "within" else parts)


def _footnotes(results: Results) -> list[str]:
    lines = [str(answer(results))]
    if any(results.mark(row, name) == "within" for row in results.rows for name in results.columns):
        lines.append("≈: within the spread of the best of its column.")
    if any(cell.values for cell in results.comparison.cells):
        several = max(len(row.done) for row in results.rows) > 1
        lines.append("±: sample standard deviation over seeds." if several else "One seed: no spread.")
    lines += counted(results)
    lines += results.comparison.notes if results.comparison.recipe == RUN else ()
    for row in results.rows:
        place = "" if row.point is None else f", {row.point}"
        for cell in row.failed:
            lines.append(f"Failed: {row.method.label}{place}, seed {cell.seed}: {cell.error} ({cell.log_path})")
    return lines


def _markdown(results: Results) -> str:
    headings = [_escape_markdown(text) for text in _headings(results)]
    rows = _text_rows(results, _escape_markdown, "**…**")
    aligned = ["---"] + ["---:"] * (len(headings) - 1)
    lines = ["| " + " | ".join(cells) + " |" for cells in [headings, aligned, *rows]]
    notes = "\n".join(f"- {_escape_markdown(line)}" for line in _footnotes(results))
    return "\n".join(lines) + f"\n\n{notes}\n"


def _latex(results: Results) -> str:
    headings = [_escape_latex(text) for text in _headings(results)]
    body = [" & ".join(cells) + r" \\" for cells in _text_rows(results, _escape_latex, r"\textbf{…}")]
    notes = ["% " + " ".join(line.split()) for line in _footnotes(results)]
    lines = [*notes, rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule", " & ".join(headings) + r" \\"]
    return "\n".join([*lines, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _csv(results: Results) -> str:
    file = io.StringIO()
    records = [_record(results, row) for row in results.rows]
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _safe(value) for key, value in record.items()} for record in records)
    return file.getvalue()


def _record(results: Results, row: Row) -> dict[str, Any]:
    sweep = {results.comparison.sweep.field: row.point} if results.comparison.sweep else {}
    record: dict[str, Any] = {"method": row.method.name, "label": row.method.label, "group": row.method.group, **sweep}
    for name in results.columns:
        found = row.values.get(name)
        record |= {name: found and found.mean, f"{name}_spread": found and found.spread}
    record |= {"rank": row.rank, "p": row.test and row.test.p, "within_spread": row.within_spread}
    record |= {"codebook": row.state, "done": len(row.done), "failed": len(row.failed)}
    record |= {name: row.mean_of(name) for name in ("n", "steps", "ms_per_step", "peak_memory_mb")}
    for kind in ("network", "quantizer"):
        record[f"{kind}_parameters"] = next((c.parameters[kind] for c in row.done if kind in c.parameters), None)
    return record | {"error": "; ".join(f"seed {cell.seed}: {cell.error}" for cell in row.failed) or None}


def _json(results: Results) -> str:
    about = {key: getattr(results.comparison, key) for key in (*ABOUT, "data", "environment", "config")}
    metrics = {name: {"label": metric(name).label, "better": metric(name).better} for name in results.columns}
    document = {"format": FORMAT, "answer": str(answer(results)), "lead": results.lead, "comparison": about}
    rows = [
        {
            **{"method": row.method.name, "label": row.method.label, "group": row.method.group, "point": row.point},
            **{"rank": row.rank, "within_spread": row.within_spread, "codebook": row.state},
            "against_best": row.test and row.test._asdict(),
            "values": {name: summary._asdict() for name, summary in row.values.items()},
            "seeds": [{key: getattr(cell, key) for key in SEED_KEYS} for cell in row.cells],
        }
        for row in results.rows
    ]
    return json.dumps(encode(document | {"metrics": metrics, "rows": rows}), indent=2, allow_nan=False) + "\n"


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _escape_markdown(text: str) -> str:
    return " ".join(re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", text).split())


_LATEX = {
    **{char: rf"\{char}" for char in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"},
    **{"↓": r"$\downarrow$", "↑": r"$\uparrow$", "×": r"$\times$", "±": r"$\pm$", "≈": r"$\approx$", "→": r"$\to$"},
    **{"Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$", "τ": r"$\tau$", "∈": r"$\in$", "–": "--", "—": "---"},
}


def _escape_latex(text: str) -> str:
    return " ".join("".join(_LATEX.get(char, char) for char in text).split())


FORMATS: dict[str, Callable[[Results], str]] = {"markdown": _markdown, "csv": _csv, "json": _json, "latex": _latex}
