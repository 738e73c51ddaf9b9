"""The tables and figures of the docs, made from docs/results/*.json.

python benchmarks/results.py                             # write what is out of date (`make results`)
python benchmarks/results.py --check                     # name it, and fail if there is any
python benchmarks/results.py add collapse-grid runs/x    # take over a finished comparison, then write
python benchmarks/results.py keep study-1024 runs/x      # or keep its records and curves, for `driftvq report` too
python benchmarks/quantizers.py | python benchmarks/results.py take step --command "…"   # or a printed table

A page has a table where it says `<!-- results: NAME -->`, up to `<!-- end -->`. Behind the name may stand rows to keep,
`K=1024 D=64 "method=VQ|EMA"`, and `columns=method,usage,psnr`. `across=K` gives each K a column, with the values of
`columns` in one cell, "rFID / usage". With `regret=psnr,lpips_alex` the table has how far each method is from the best
one of each condition. `with=NAME` adds the rows, or for regrets the conditions, of another file. `RECIPE-published` is
what the paper reports of a recipe. docs/results.md has all tables that are marked as whole.
"""

import argparse
import hashlib
import json
import math
import re
import shlex
import statistics
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from driftvq.experiments.methods import METHODS as KNOWN_METHODS
from driftvq.experiments.recipes import RECIPES
from driftvq.files import read_object, read_records, replacing, write_text
from driftvq.names import check_name
from driftvq.records.codec import write_record
from driftvq.records.comparisons import CELLS, COMPARISON_FILE, Cell, Comparison, write_cell
from driftvq.records.metric_table import METRICS, decimals, metric, written, written_spread
from driftvq.records.runs import METRICS_FILE
from driftvq.report import aggregate, load_comparison
from driftvq.report.drawings import times_to_level
from verdicts import PLACES, verdicts

DOCS = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
ARROWS = {"lower": " ↓", "higher": " ↑", None: ""}
SPREAD = re.compile(r"(-?[\d.,]+) ± ([\d.,]+)")
TABLES = ("table-3d", "table-64d")
"""Recipes of Tables 2 and 3."""
KEPT_EVERY = 200
"""Steps between the readings of a training that are kept."""
PRINTED_DIGITS: dict[Hashable, int] = {"usage": 0, "lpips_alex": 3, ("imagenet", "rfid"): 3}
"""Digits behind the point in the paper's tables, or in one of them, where they are not two."""
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


def read_all(docs: Path = DOCS) -> dict[str, Results]:
    """Every table, by the name of its file; and what the paper reports."""
    found = {path.stem: Results(**read_object(path)) for path in sorted((docs / "results").glob("*.json"))}
    kept = {path.parent.name: load_comparison(path.parent) for path in (docs / "results").glob(f"*/{COMPARISON_FILE}")}
    found |= {name: from_comparison(kept[name]) for name in sorted(kept)}
    study = [kept[name] for name in sorted(kept) if name.startswith("study-")]
    found |= {"study-verdicts": study_verdicts(study), "study-best": study_best(study), "study-cost": study_cost(study)}
    return found | {f"{name}-published": results for name, results in published().items()}


def study_verdicts(study: Sequence[Comparison]) -> Results:
    """What the study says of each claim of the paper."""
    found = verdicts(cell for comparison in study for cell in comparison.cells)
    rows: list[list[Value]] = []
    for number, (sentence, *rest) in enumerate(found):
        rows.append([None if number and found[number - 1][0] == sentence else sentence, *rest])
    return Results("Verdicts", "", "", ["the paper says", "of", "verdict", "numbers"], rows, listed=False)


def study_best(study: Sequence[Comparison]) -> Results:
    """Table 4: every method at that of its places where its rFID, the mean over seeds, is lowest; the best first."""
    metrics = ["rfid", "lpips_alex", "ssim"]
    places: dict[str, list[tuple[list[float], int, int, int]]] = {}
    for (label, codes, dim), cells in _by_place(study).items():
        seeds = list({cell.seed: cell for cell in cells}.values())
        means = [statistics.fmean(cell.values[name] for cell in seeds) for name in metrics]
        places.setdefault(label, []).append((means, codes, dim, len(seeds)))
    best = sorted((min(found), label) for label, found in places.items())
    rows: list[list[Value]] = [
        [label, codes, dim, *(_rounded(mean, None) for mean in means), seeds, f"{len(places[label])} of {len(PLACES)}"]
        for (means, codes, dim, seeds), label in best
    ]
    return Results("Table 4", "", "", ["method", "K", "D", *metrics, "seeds", "places"], rows, listed=False)


def _by_place(study: Sequence[Comparison]) -> dict[tuple[str, int, int], list[Cell]]:
    """The finished cells of Tables 2 and 3 by the method's label, K and D."""
    found: dict[tuple[str, int, int], list[Cell]] = {}
    for comparison in study:
        labels = {method.name: method.label for method in comparison.methods}
        for cell in comparison.cells:
            if cell.status == "done" and comparison.recipe in TABLES and cell.codebook_size:
                found.setdefault((labels[cell.method], cell.codebook_size, cell.code_dim or 0), []).append(cell)
    return found


def study_cost(study: Sequence[Comparison]) -> Results:
    """How long each method trains until it has the PSNR that half of them have in the end, at each K and D."""
    rows: list[list[Value]] = []
    for comparison in study:
        if comparison.recipe not in TABLES:
            continue
        results = aggregate(comparison)
        reached = times_to_level(results)
        for row in results.rows:
            found = reached.get((row.method.name, row.point))
            cells = [cell for cell in row.done if cell.ms_per_step is not None]
            if found is None or not cells or cells[0].codebook_size is None:
                continue
            ms = statistics.fmean(cell.ms_per_step or 0.0 for cell in cells)
            after: list[Value] = ["never", None]
            if found.seconds is not None:
                after = [round(found.seconds), round(1000 * found.seconds / ms)]
            where = [cells[0].codebook_size, cells[0].code_dim, row.method.label]
            rows.append([*where, found.level, *after, round(ms, 1)])
    rows.sort(key=lambda row: (*row[:2], row[5] or math.inf))
    columns = ["K", "D", "method", "PSNR (dB) to reach", "seconds", "steps", "ms per step"]
    digits = {"ms per step": 0, "PSNR (dB) to reach": 2}
    return Results("What it costs", "", "", columns, rows, digits, listed=False)


def published() -> dict[str, Results]:
    """The paper's numbers, by recipe."""
    found = {}
    for recipe in RECIPES.values():
        if recipe.published is not None:
            values = recipe.published.values
            metrics = list(dict.fromkeys(name for row in values.values() for name in row))
            swept = [point for _, point in values if point is not None]
            rows: list[list[Value]] = [
                [KNOWN_METHODS[method].label, *([point] if swept else []), *(row.get(name) for name in metrics)]
                for (method, point), row in values.items()
            ]
            columns = ["method", *(["codebook size K"] if swept else []), *metrics]
            digits = {name: PRINTED_DIGITS.get((recipe.name, name), PRINTED_DIGITS.get(name, 2)) for name in metrics}
            about = recipe.published.setting
            found[recipe.name] = Results(recipe.published.source, "", about, columns, rows, digits, listed=False)
    return found


def save(results: Results, path: Path) -> None:
    """Compact: one line per row."""
    about = {name: value for name, value in asdict(results).items() if name != "rows"}
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in about.items()]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in results.rows)
    write_text(path, "{\n" + "\n".join(lines) + f'\n"rows": [\n{rows}\n]\n}}\n')


def from_comparison(comparison: Comparison) -> Results:
    """The results of `driftvq compare` or `reproduce`."""
    results = aggregate(comparison)
    sweep, rows = comparison.sweep, list[list[Value]]()
    for row in results.rows:
        if not (row.done or row.failed):
            continue
        values: list[Value] = []
        for name in results.columns:
            found = row.values.get(name)
            values.append(None if found is None else _rounded(found.mean, found.spread))
        rows.append([row.method.label, *([row.point] if sweep else []), *values, len(row.done)])
    data, config = comparison.data, comparison.config
    facts = [f"{data['source']}, {data['train']:,} images to train on, n = {data['evaluation']}, {data['size']} px"]
    facts += [f"{config[name]:,} {name}" for name in ("steps",) if name in config]
    facts += [f"scale {comparison.scale}", f"seeds {', '.join(map(str, comparison.seeds))}"]
    facts += [f"usage over {cell.usage_over}" for cell in comparison.cells[:1] if cell.usage_over]
    columns = ["method", *([sweep.label] if sweep else []), *results.columns, "seeds"]
    return Results(comparison.title, comparison.command, "; ".join(facts) + ".", columns, rows)


def keep(folder: Path, place: Path, title: str | None = None) -> None:
    """Copy what a report needs of the finished cells, without images, codes and the paths of this machine."""
    comparison = load_comparison(folder)
    sources = [str(comparison.request.get(name)) for name in ("data", "val_data") if comparison.request.get(name)]
    command = comparison.command
    for source in sources:
        command = command.replace(source, Path(source).name)
    shorter = {source: Path(source).name for source in sources}
    texts: dict[str, Any] = {
        name: _renamed(getattr(comparison, name), shorter) for name in ("data", "request", "config")
    }
    place.mkdir(parents=True, exist_ok=True)
    named = replace(comparison, title=title or comparison.title, command=command, **texts)
    write_record(place / COMPARISON_FILE, named)
    for cell in comparison.cells:
        if cell.status in ("done", "failed"):
            copy = replace(cell, folder=place / CELLS / cell.folder.name, config=_renamed(cell.config, shorter))
            copy.folder.mkdir(parents=True, exist_ok=True)
            write_cell(copy)
            records = [one for one in read_records(cell.folder / METRICS_FILE) if one["step"] % KEPT_EVERY == 0]
            write_text(copy.folder / METRICS_FILE, "".join(json.dumps(_shortened(one)) + "\n" for one in records))


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {key: names.get(value, value) if isinstance(value, str) else value for key, value in values.items()}


def _shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in record.items()}


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
        if all(_text(row[results.columns.index(name)]) in texts for name, texts in (wanted or {}).items())
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


def rendered(text: str, everything: Mapping[str, Results]) -> str:
    """A page with its tables as they should be."""

    def filled(found: re.Match[str]) -> str:
        name, *options = shlex.split(found[2])
        chosen = dict(option.split("=", 1) for option in options)
        columns = chosen.pop("columns", "").split(",") if "columns" in chosen else []
        names = [name, *(chosen.pop("with").split(",") if "with" in chosen else [])]
        results, *more = (everything[check_name("file of docs/results", one, everything)] for one in names)
        if "regret" in chosen:
            results = regret_table([results, *more], chosen.pop("regret").split(","))
        else:
            results = joined([results, *more])
        across = chosen.pop("across", None)
        wanted = {key: value.split("|") for key, value in chosen.items()}
        table = render(results, wanted, columns) if across is None else render_across(results, across, wanted, columns)
        return found[1] + table + found[3]

    return MARKED.sub(filled, text)


def joined(tables: Sequence[Results]) -> Results:
    """The rows of all, in the columns of the first."""
    rows = list(tables[0].rows)
    for other in tables[1:]:
        place = {name: other.columns.index(name) for name in tables[0].columns if name in other.columns}
        rows += [[row[place[name]] if name in place else None for name in tables[0].columns] for row in other.rows]
    return replace(tables[0], rows=rows)


def render_across(results: Results, across: str, wanted: Mapping[str, Sequence[str]], columns: Sequence[str]) -> str:
    """A Markdown table with a row per method and a column per value of ``across``."""
    for name in (across, *wanted, *columns):
        check_name("column", name, results.columns)
    at, method = results.columns.index(across), results.columns.index("method")
    cells: dict[tuple[str, str], str] = {}
    for row in results.rows:
        if all(_text(row[results.columns.index(name)]) in texts for name, texts in wanted.items()):
            values = [_cell(results, place, row[place]) for place in map(results.columns.index, columns)]
            cells.setdefault((_text(row[method]), _text(row[at])), " / ".join(values))
    if not cells:
        raise ValueError(f"no row of {results.title!r} has {dict(wanted)}")
    methods, points = (list(dict.fromkeys(key[side] for key in cells)) for side in (0, 1))
    points.sort(key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0))
    short = across.split()[-1]
    lines = [["method", *(f"{short} = {point}" for point in points)], ["---"] * (len(points) + 1)]
    lines += [[name, *(cells.get((name, point), "") for point in points)] for name in methods]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Regret(NamedTuple):
    """Over the conditions in which a method was run: the mean and the largest distance to the best method of each.

    A condition in which it failed makes both infinite.
    """

    mean: float
    worst: float
    where: Hashable
    conditions: int


def regrets(values: Mapping[Hashable, Mapping[str, float | None]], name: str) -> dict[str, Regret]:
    """The regrets of all methods.

    ``r_mc = |v_mc - best_m' v_m'c|``; mean and maximum over the conditions c.

    >>> regrets({"small": {"a": 20.0, "b": 21.0}, "large": {"a": 24.0, "b": 22.0}}, "psnr")["b"]
    Regret(mean=1.0, worst=2.0, where='large', conditions=2)

    Args:
        values: of the metric, by condition and method; None where it failed.
        name: of the metric, which says what is better.

    Returns:
        By method, the smallest worst case first. Behind them those that were run in fewer conditions: they may be worse
        than what is known of them.
    """
    better = metric(name).better
    if better is None:
        raise ValueError(f"no value of {name!r} is better than another, so there is no regret")
    pick = max if better == "higher" else min
    away: dict[str, dict[Hashable, float]] = {}
    for condition, found in values.items():
        if all(value is None for value in found.values()):
            continue
        best = pick(value for value in found.values() if value is not None)
        for method, value in found.items():
            away.setdefault(method, {})[condition] = math.inf if value is None else abs(value - best)
    each = {method: _regret(of) for method, of in away.items()}
    return dict(sorted(each.items(), key=lambda item: (-item[1].conditions, item[1].worst, item[1].mean)))


def _regret(away: Mapping[Hashable, float]) -> Regret:
    where = max(away, key=lambda condition: away[condition])
    return Regret(math.fsum(away.values()) / len(away), away[where], where, len(away))


def regret_table(tables: Sequence[Results], names: Sequence[str]) -> Results:
    """Mean and worst distance of every method to the best one of each condition; smallest worst case first."""
    columns: list[str] = ["method"]
    rows: dict[str, list[Value]] = {}
    digits: dict[str, int] = {}
    for name in names:
        label, places = metric(name).heading, tables[0].digits.get(name, metric(name).decimals or 4)
        columns += [f"{label}, mean regret", f"{label}, worst", f"{label}, worst at"]
        digits |= dict.fromkeys(columns[-3:-1], places)
        found = regrets(_by_condition(tables, name), name)
        for method, of in found.items():
            rows.setdefault(method, [method]).extend([of.mean, of.worst, str(of.where)])
    if len({of.conditions for of in found.values()}) > 1:
        columns.append("conditions")
        for method, row in rows.items():
            row.append(found[method].conditions)
    return Results(tables[0].title, tables[0].command, tables[0].about, columns, list(rows.values()), digits)


def _by_condition(tables: Sequence[Results], name: str) -> dict[Hashable, dict[str, float | None]]:
    """The values of a metric by condition, which is what the columns say that are no metric, and method."""
    values: dict[Hashable, dict[str, float | None]] = {}
    for number, results in enumerate(tables):
        fixed = [c for c in results.columns if c not in ("method", "seeds") and c.partition("@")[0] not in METRICS]
        for row in results.rows:
            cells = dict(zip(results.columns, row, strict=True))
            words = [str(cells[c]) if isinstance(cells[c], str) else f"{c} {cells[c]:g}" for c in fixed]
            condition = ", ".join(words + ([results.title] if number or not words else []))
            if cells[name] is not None and cells.get("usage", 1) is None:
                continue  # without codes it is no contestant
            found = None if cells[name] is None else _mean(cells[name])
            values.setdefault(condition, {})[str(cells["method"])] = found
    return values


def results_page(everything: Mapping[str, Results]) -> str:
    """docs/results.md."""
    parts = [
        "# Results\n\nEvery table with the command that gives it, made by `make results` from `docs/results/*.json`. "
        "±: sample standard deviation over seeds.\n"
    ]
    for name, results in everything.items():
        if results.listed:
            parts.append(f"## {results.title}\n\n`{results.command}`\n\n{results.about}\n")
            parts.append(f"<!-- results: {name} -->\n<!-- end -->\n")
    return rendered("\n".join(parts), everything)


FIGURE, FIGURE_DATA = "images/collapse.png", "collapse-grid"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")


def draw(results: Results, place: Path) -> None:
    """Codes in use against the codebook size at D = 64, after 300 steps and in the end; ours are thick."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    at = {name: i for i, name in enumerate(results.columns)}
    panels = {"usage@300": "after 300 steps", "usage": "after 2,500 steps"}
    rows = [row for row in results.rows if row[at["D"]] == 64 and isinstance(row[at["K"]], int)]
    methods = list(dict.fromkeys(str(row[at["method"]]) for row in rows))
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for number, method in enumerate(methods):
            points = sorted((row[at["K"]], _mean(row[at[name]])) for row in rows if row[at["method"]] == method)
            ours = "NSVQ" in method or "TransVQ" in method
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 2.5 if ours else 1.2, "marker": "o"}
            axes.plot(*zip(*points, strict=True), label=method, linestyle="-" if number < 8 else "--", **style)
        axes.set(xlabel="codebook size K", xscale="log", title=title, ylim=(0, 1.03))
        axes.set_xticks(sizes := sorted({int(row[at["K"]]) for row in rows}), map(str, sizes))  # type: ignore[arg-type]
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("share of the codes in use")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    with replacing(place) as temporary:
        figure.savefig(temporary, format="png", dpi=100, metadata={"Data": _digest(results)})


def outdated(docs: Path = DOCS, write: bool = False) -> list[Path]:
    """Pages and figures that are not what the data says; they are put right if asked."""
    everything, found = read_all(docs), []
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(docs.rglob("*.md"))}
    pages.setdefault(docs / "results.md", "")
    for path, text in pages.items():
        wanted = results_page(everything) if path == docs / "results.md" else rendered(text, everything)
        if wanted != text:
            found.append(path)
            if write:
                write_text(path, wanted)
    figure = docs / FIGURE
    if _drawn_from(figure) != _digest(everything[FIGURE_DATA]):
        found.append(figure)
        if write:
            draw(everything[FIGURE_DATA], figure)
    return found


def _digest(results: Results) -> str:
    return hashlib.sha256(json.dumps([results.columns, results.rows]).encode()).hexdigest()


def _drawn_from(figure: Path) -> str | None:
    """The data that a figure says it was drawn from."""
    if not figure.is_file():
        return None
    with Image.open(figure) as image:
        return str(image.info.get("Data"))


def _heading(name: str) -> str:
    known = metric(name)
    return f"{known.heading}{ARROWS[known.better]}" if name.partition("@")[0] in METRICS else name


def _cell(results: Results, place: int, value: Value) -> str:
    name = results.columns[place]
    if value is None or isinstance(value, str):
        return _text(value)
    if name.partition("@")[0] not in METRICS:
        digits = results.digits.get(name, 0)
        parts = value if isinstance(value, list) else [value]
        return " ± ".join(f"{part:,.{digits}f}" if part >= 10_000 else f"{part:.{digits}f}" for part in parts)
    means = [_mean(row[place]) for row in results.rows if not isinstance(row[place], str) and row[place] is not None]
    digits = results.digits.get(name, decimals(name, means))
    if isinstance(value, list):
        return f"{written(name, value[0], digits)} ± {written_spread(name, value[1], digits)}"
    return written(name, value, digits)


def _text(value: Value) -> str:
    if isinstance(value, list):
        return f"{value[0]:g} ± {value[1]:g}"
    return "" if value is None else str(value)


def _mean(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


def _rounded(mean: float, spread: float | None) -> Value:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is out of date")
    commands = parser.add_subparsers(dest="command_name")
    add = commands.add_parser("add", help="take over a comparison")
    take = commands.add_parser("take", help="take over a table from standard input")
    for one in (add, take):
        one.add_argument("name", help="of the file in docs/results")
        one.add_argument("--title")
        one.add_argument("--about", help="what a reader must know: data, n, seeds, scale")
    keeping = commands.add_parser("keep", help="keep the records of a comparison")
    keeping.add_argument("name", help="of the folder in docs/results")
    keeping.add_argument("--title")
    for one in (add, keeping):
        one.add_argument("folder", type=Path, help="of the comparison")
    take.add_argument("--command", required=True, help="that printed it")
    args = parser.parse_args()
    if args.command_name == "keep":
        keep(args.folder, DOCS / "results" / args.name, args.title)
    elif args.command_name is not None:
        if args.command_name == "take":
            new = from_text(sys.stdin.read(), args.name, args.command, "")
        else:
            new = from_comparison(load_comparison(args.folder))
        changes = {name: getattr(args, name) for name in ("title", "about") if getattr(args, name) is not None}
        save(Results(**{**asdict(new), **changes}), DOCS / "results" / f"{args.name}.json")
    found = outdated(write=not args.check)
    print("\n".join(str(path.relative_to(DOCS.parent)) for path in found) or "everything is up to date")
    if args.check and found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
