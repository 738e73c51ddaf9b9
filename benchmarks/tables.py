"""Tables of numbers that know where they come from, as files, from printed ones, and as Markdown."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from driftvq.files import write_text
from driftvq.names import check_name
from driftvq.records.metric_table import METRICS, decimals, metric, written, written_spread

ARROWS = {"lower": " ↓", "higher": " ↑", None: ""}
SPREAD = re.compile(r"(-?[\d.,]+) ± ([\d.,]+)")
PRINTED = {"at step 300": "usage@300", "PSNR": "psnr", "LPIPS": "lpips_alex", "rFID": "rfid"}
"""Headings of printed tables that are metrics by another name; a metric's own name is known."""

Value = str | int | float | list[float] | None
"""A text, a number, mean and standard deviation over seeds, or nothing."""


@dataclass(frozen=True)
class Results:
    """A table of numbers and where they come from.

    Attributes:
        title: for readers.
        command: what gives these numbers.
        about: data, scale, n, seeds, and what differs from the present code.
        columns: names of metrics (:data:`METRICS`) or headings.
        rows: one value for each column.
        digits: behind the point, where they differ from the metric's own.
        listed: whether docs/results.md shows it.
    """

    title: str
    command: str
    about: str
    columns: list[str]
    rows: list[list[Value]]
    digits: dict[str, int] = field(default_factory=dict)
    listed: bool = True


def save(results: Results, path: Path) -> None:
    """Compact: one line per row."""
    about = {name: value for name, value in asdict(results).items() if name != "rows"}
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in about.items()]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in results.rows)
    write_text(path, "{\n" + "\n".join(lines) + f'\n"rows": [\n{rows}\n]\n}}\n')


def from_text(text: str, title: str, command: str, about: str) -> Results:
    """The first table of a Markdown text."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    if len(cells) < 3 or len({len(line) for line in cells}) != 1:
        raise ValueError(f"the text must hold one Markdown table with rows of one length, got {len(lines)} lines of it")
    columns = [PRINTED.get(name, name) for name in cells[0]]
    rows = [[_parsed(cell) for cell in line] for line in cells[2:]]
    digits = {}
    for place, name in enumerate(columns):
        printed = [found for line in cells[2:] for found in re.findall(r"^-?[\d,]+\.(\d+)(?= ±|$)", line[place])]
        if printed:
            digits[name] = max(map(len, printed)) - (2 if metric(name).percent else 0)
    return Results(title, command, about, columns, rows, digits)


def render(results: Results, wanted: Mapping[str, Sequence[str]] | None = None, columns: Sequence[str] = ()) -> str:
    """A Markdown table of the rows whose columns have the wanted values."""
    for name in (*(wanted or {}), *columns):
        check_name("column", name, results.columns)
    kept = [
        row
        for row in results.rows
        if all(as_text(row[results.columns.index(name)]) in texts for name, texts in (wanted or {}).items())
    ]
    if not kept:
        raise ValueError(f"no row of {results.title!r} has {wanted}")
    fixed = [name for name, texts in (wanted or {}).items() if len(texts) == 1]
    places = [results.columns.index(name) for name in columns or results.columns if columns or name not in fixed]
    places = [place for place in places if any(row[place] is not None for row in kept)]
    headings = [_heading(results.columns[place]) for place in places]
    body = [[_cell(results, place, row[place]) for place in places] for row in kept]
    aligned = ["---" if any(isinstance(row[place], str) for row in kept) else "---:" for place in places]
    return "\n".join("| " + " | ".join(line) + " |" for line in [headings, aligned, *body]) + "\n"


def joined(tables: Sequence[Results]) -> Results:
    """The rows of all, in the columns of the first; a method that has its row at a place already gets no other."""
    columns, rows = tables[0].columns, list(tables[0].rows)
    fixed = [at for at, name in enumerate(columns) if name != "seeds" and name.partition("@")[0] not in METRICS]
    for other in tables[1:]:
        places = [other.columns.index(name) if name in other.columns else None for name in columns]
        more = [[None if place is None else row[place] for place in places] for row in other.rows]
        known = {tuple(as_text(row[at]) for at in fixed) for row in rows}
        rows += [row for row in more if tuple(as_text(row[at]) for at in fixed) not in known]
    return replace(tables[0], rows=rows)


def render_across(
    results: Results, across: str, wanted: Mapping[str, Sequence[str]], columns: Sequence[str], down: str = "method"
) -> str:
    """A Markdown table with a row per value of ``down``, and a column per value of ``across``."""
    for name in (across, down, *wanted, *columns):
        check_name("column", name, results.columns)
    at, first = results.columns.index(across), results.columns.index(down)
    cells: dict[tuple[str, str], str] = {}
    for row in results.rows:
        if all(as_text(row[results.columns.index(name)]) in texts for name, texts in wanted.items()):
            values = [_cell(results, place, row[place]) for place in map(results.columns.index, columns)]
            cells.setdefault((as_text(row[first]), as_text(row[at])), " / ".join(filter(None, values)))
    if not cells:
        raise ValueError(f"no row of {results.title!r} has {dict(wanted)}")
    names, points = (list(dict.fromkeys(key[side] for key in cells)) for side in (0, 1))
    points.sort(key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0))
    short = across.split()[-1]
    headings = [f"{short} = {point}" if point.isdecimal() else point for point in points]
    lines = [[down, *headings], ["---"] * (len(points) + 1)]
    lines += [[name, *(cells.get((name, point), "") for point in points)] for name in names]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _heading(name: str) -> str:
    known = metric(name)
    return f"{known.heading}{ARROWS[known.better]}" if name.partition("@")[0] in METRICS else name


def _cell(results: Results, place: int, value: Value) -> str:
    name = results.columns[place]
    if value is None or isinstance(value, str):
        return as_text(value)
    if name.partition("@")[0] not in METRICS:
        digits = results.digits.get(name, 0)
        parts = value if isinstance(value, list) else [value]
        return " ± ".join(f"{part:,.{digits}f}" if part >= 10_000 else f"{part:.{digits}f}" for part in parts)
    means = [mean_of(row[place]) for row in results.rows if not isinstance(row[place], str) and row[place] is not None]
    digits = results.digits.get(name, decimals(name, means))
    if isinstance(value, list):
        return f"{written(name, value[0], digits)} ± {written_spread(name, value[1], digits)}"
    return written(name, value, digits)


def as_text(value: Value) -> str:
    if isinstance(value, list):
        return f"{value[0]:g} ± {value[1]:g}"
    return "" if value is None else str(value)


def mean_of(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


def rounded(mean: float, spread: float | None) -> Value:
    return float(f"{mean:.6g}") if spread is None else [float(f"{mean:.6g}"), float(f"{spread:.3g}")]


def _parsed(text: str) -> Value:
    """A number, mean and spread, or the text as it is."""
    spread = SPREAD.fullmatch(text)
    if spread:
        return [float(part.replace(",", "")) for part in spread.groups()]
    try:
        return int(text.replace(",", ""))
    except ValueError:
        pass
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text or None
