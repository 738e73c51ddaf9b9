"""The study's cells: kept without images, joined from several runs, and summed up.

``results.py keep`` puts them into docs/results, the tables on docs/study.md come from there.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftvq.experiments.design import Request
from driftvq.files import read_records, write_text
from driftvq.records.codec import decode, encode, write_record
from driftvq.records.comparisons import CELLS, COMPARISON_FILE, Cell, Comparison, Place, load_comparison, write_cell
from driftvq.records.runs import METRICS_FILE
from driftvq.report import Row, aggregate
from driftvq.report.drawings import times_to_level
from tables import Results, Value, rounded
from verdicts import PLACES, verdicts

TABLES = ("table-3d", "table-64d")
"""Recipes of Tables 2 and 3."""
KEPT_EVERY = 200
"""Steps between the readings of a training that are kept."""
ONE_STUDY = ("recipe", "scale", "metrics", "data", "environment")
"""What runs that are kept together agree in: their times are compared, so they come from one machine."""


def keep(folder: Path, place: Path, title: str | None = None) -> None:
    """Copy what a report needs of the finished cells, without images, codes and the paths of this machine.

    Where a comparison is kept already they join its cells, in place of those with the same method, point and seed.
    """
    comparison = load_comparison(folder)
    sources = [str(comparison.request.get(name)) for name in ("data", "val_data") if comparison.request.get(name)]
    shorter = {source: Path(source).name for source in sources}
    command = comparison.command
    for source, name in shorter.items():
        command = command.replace(source, name)
    texts: dict[str, Any] = {
        name: _renamed(getattr(comparison, name), shorter) for name in ("data", "request", "config")
    }
    finished = tuple(cell for cell in comparison.cells if cell.status in ("done", "failed"))
    named = replace(comparison, command=command, cells=finished, **texts)
    if (place / COMPARISON_FILE).is_file():
        named = both(load_comparison(place), named)
    place.mkdir(parents=True, exist_ok=True)
    for cell in finished:
        copy = replace(cell, folder=place / CELLS / cell.folder.name, config=_renamed(cell.config, shorter))
        copy.folder.mkdir(parents=True, exist_ok=True)
        write_cell(copy)
        records = [one for one in read_records(cell.folder / METRICS_FILE) if one["step"] % KEPT_EVERY == 0]
        write_text(copy.folder / METRICS_FILE, "".join(json.dumps(_shortened(one)) + "\n" for one in records))
    places = tuple(cell.place for cell in named.cells)
    write_record(place / COMPARISON_FILE, replace(named, name=place.name, title=title or named.title, places=places))


def both(old: Comparison, new: Comparison) -> Comparison:
    """One comparison with the cells of two runs; a cell that both have is that of the new one."""
    for name in ONE_STUDY:
        mine, theirs = getattr(old, name), getattr(new, name)
        if mine != theirs:
            raise ValueError(f"{old.folder} has {name} {mine}, the run {theirs}; keep it in a folder of its own")
    methods = tuple({method.name: method for method in (*old.methods, *new.methods)}.values())
    names = [method.name for method in methods]
    cells: dict[Place, Cell] = {cell.place: cell for cell in (*old.cells, *new.cells)}
    order = sorted(cells, key=lambda at: (names.index(at.method), at.point is not None, at.point, at.seed))
    sweep, seeds = new.sweep, tuple(sorted({*old.seeds, *new.seeds}))
    if old.sweep is not None and sweep is not None:
        sweep = replace(sweep, values=tuple(sorted({*old.sweep.values, *sweep.values})))  # type: ignore[type-var]
    asked = decode(Request, new.request, "request")
    sizes = None if sweep is None or asked.codebook_size is None else sweep.values
    asked = replace(asked, methods=tuple(names), codebook_size=sizes, seeds=len(seeds) if len(seeds) > 1 else None)
    return replace(
        old, methods=methods, sweep=sweep, seeds=seeds, cells=tuple(cells[at] for at in order),
        command=asked.command(), request=encode(asked), notes=tuple(dict.fromkeys((*old.notes, *new.notes))),
        config={name: value for name, value in new.config.items() if old.config.get(name) == value},
    )  # fmt: skip


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {key: names.get(value, value) if isinstance(value, str) else value for key, value in values.items()}


def _shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in record.items()}


def summaries(study: Sequence[Comparison]) -> dict[str, Results]:
    """The tables that are worked out from all of the study, by their names on pages."""
    return {"study-verdicts": _verdicts(study), "study-best": _best(study), "study-cost": _cost(study)}


def _verdicts(study: Sequence[Comparison]) -> Results:
    """What the study says of each claim of the paper."""
    found = verdicts(cell for comparison in study for cell in comparison.cells)
    rows: list[list[Value]] = []
    for number, (sentence, *rest) in enumerate(found):
        rows.append([None if number and found[number - 1][0] == sentence else sentence, *rest])
    return Results("Verdicts", "", "", ["the paper says", "of", "verdict", "numbers"], rows, listed=False)


def _best(study: Sequence[Comparison]) -> Results:
    """Table 4: every method at that of its places where its rFID, the mean over seeds, is lowest; the best first."""
    metrics = ["rfid", "lpips_alex", "ssim"]
    places: dict[str, list[tuple[list[float], int, int, int]]] = {}
    for (label, codes, dim), cells in _by_place(study).items():
        seeds = list({cell.seed: cell for cell in cells}.values())
        means = [statistics.fmean(cell.values[name] for cell in seeds) for name in metrics]
        places.setdefault(label, []).append((means, codes, dim, len(seeds)))
    best = sorted((min(found), label) for label, found in places.items())
    rows: list[list[Value]] = [
        [label, codes, dim, *(rounded(mean, None) for mean in means), seeds, f"{len(places[label])} of {len(PLACES)}"]
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


def _cost(study: Sequence[Comparison]) -> Results:
    """How long each method trains until it has the PSNR that half of them have in the end, at each K and D.

    Of several runs at a K and D the one with most methods counts: times of different machines are not compared.
    """
    runs: dict[tuple[Any, ...], list[list[Value]]] = {}
    for comparison in (one for one in study if one.recipe in TABLES):
        results, found = aggregate(comparison), dict[tuple[Any, ...], list[list[Value]]]()
        reached = times_to_level(results)
        for row in results.rows:
            at = reached.get((row.method.name, row.point))
            ms = row.mean_of("ms_per_step")
            if at is not None and ms is not None and (where := _where(row)):
                after: list[Value] = ["never", None]
                if at.seconds is not None:
                    after = [round(at.seconds), round(1000 * at.seconds / ms)]
                found.setdefault(where, []).append([*where, row.method.label, at.level, *after, round(ms, 1)])
        for where, rows in found.items():
            runs[where] = max(runs.get(where, []), rows, key=len)
    rows = [row for where in sorted(runs) for row in sorted(runs[where], key=lambda row: row[5] or math.inf)]
    columns = ["K", "D", "method", "PSNR (dB) to reach", "seconds", "steps", "ms per step"]
    digits = {"ms per step": 0, "PSNR (dB) to reach": 2}
    return Results("What it costs", "", "", columns, rows, digits, listed=False)


def _where(row: Row) -> tuple[int, int | None] | None:
    """K and D; None without codes."""
    first = row.done[0]
    return None if first.codebook_size is None else (first.codebook_size, first.code_dim)
