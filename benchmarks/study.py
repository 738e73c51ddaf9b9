"""The study's cells: kept without images, joined from several runs, and summed up.

``results.py keep`` puts them into docs/results, the tables on docs/study.md come from there.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from driftvq.experiments.design import Request
from driftvq.experiments.methods import METHODS
from driftvq.files import read_records, write_text
from driftvq.records.codec import decode, encode, write_record
from driftvq.records.comparisons import CELLS, COMPARISON_FILE, Cell, Comparison, Place, load_comparison, write_cell
from driftvq.records.runs import METRICS_FILE
from driftvq.report import aggregate
from driftvq.report.drawings import times_to_level
from driftvq.report.results import summarize
from tables import Results, Value, rounded
from verdicts import PLACES, verdicts

SCALE = "overnight"
TABLES = ("table-3d", "table-64d")
"""Recipes of Tables 2 and 3."""
MAP = "collapse-drift"
FIGURE = "figure-codebook-size"
LATENTS = 64
"""Of an image of the map: 32 px, four of them to a latent."""
KEPT_EVERY = 200
"""Steps between the readings of a training that are kept."""
ONE_STUDY = ("recipe", "scale", "metrics", "data", "environment")
"""What runs that are kept together agree in: their times are compared, so they come from one machine."""


def keep(folder: Path, place: Path, title: str | None = None) -> None:
    """Copy what a report needs of the finished cells, without images, codes and the paths of this machine.

    Where a comparison is kept already they join its cells, in place of those with the same method, point and seed. Of
    one that is not finished, or was stopped, what is kept is the comparison of what it has.
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
    if len(finished) < len(comparison.cells):
        points, sweep = {cell.point for cell in finished}, named.sweep
        if sweep is not None:
            sweep = replace(sweep, values=tuple(point for point in sweep.values if point in points))
        named = _with(replace(named, sweep=sweep), finished)
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
    cells: dict[Place, Cell] = {cell.place: cell for cell in (*old.cells, *new.cells)}
    sweep = new.sweep
    if old.sweep is not None and sweep is not None:
        sweep = replace(sweep, values=tuple(sorted({*old.sweep.values, *sweep.values})))  # type: ignore[type-var]
    config = {name: value for name, value in new.config.items() if old.config.get(name) == value}
    notes = tuple(dict.fromkeys((*old.notes, *new.notes)))
    joined = replace(old, methods=methods, sweep=sweep, request=new.request, notes=notes, config=config)
    return _with(joined, tuple(cells.values()))


def _with(comparison: Comparison, cells: Sequence[Cell]) -> Comparison:
    """The comparison that would have had these cells alone."""
    methods = tuple(method for method in comparison.methods if any(cell.method == method.name for cell in cells))
    names, seeds, sweep = [one.name for one in methods], sorted({cell.seed for cell in cells}), comparison.sweep
    asked, varied = decode(Request, comparison.request, "request"), () if sweep is None else sweep.values
    asked = replace(
        asked, methods=tuple(names), seeds=len(seeds) if len(seeds) > 1 else None, first_seed=min(seeds) or None,
        codebook_size=asked.codebook_size and varied, conditions=asked.conditions and varied,
    )  # fmt: skip
    order = sorted(cells, key=lambda cell: (names.index(cell.method), cell.point is not None, cell.point, cell.seed))
    return replace(
        comparison, methods=methods, seeds=tuple(seeds), cells=tuple(order), command=asked.command(),
        request=encode(asked),
    )  # fmt: skip


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {key: names.get(value, value) if isinstance(value, str) else value for key, value in values.items()}


def _shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in record.items()}


def summaries(kept: Sequence[Comparison]) -> dict[str, Results]:
    """The tables that are worked out from all of the study, by their names on pages."""
    study = [comparison for comparison in kept if comparison.scale == SCALE]
    drift = [comparison for comparison in kept if comparison.recipe == MAP]
    return {
        "study-verdicts": _verdicts(study), "study-cells": _cells(study), "study-best": _best(study),
        "study-cost": _cost(study), "drift-map": _map(drift),
    }  # fmt: skip


def _verdicts(study: Sequence[Comparison]) -> Results:
    """What the study says of each claim of the paper."""
    found = verdicts(cell for comparison in study for cell in comparison.cells)
    rows: list[list[Value]] = []
    for number, (sentence, *rest) in enumerate(found):
        rows.append([None if number and found[number - 1][0] == sentence else sentence, *rest])
    return Results("Verdicts", "", "", ["the paper says", "of", "verdict", "numbers"], rows, listed=False)


def _cells(study: Sequence[Comparison]) -> Results:
    """Tables 2 and 3, and what Figure 3 adds: a row for each method with K codes of D dimensions, over its seeds."""
    metrics = ["rfid", "kid", "lpips_alex", "ssim", "psnr", "usage", "perplexity", "relocated"]
    order = list(METHODS)
    rows: list[list[Value]] = []
    for place, seeds in sorted(_by_place(study).items(), key=lambda item: (*item[0][1:], order.index(item[0][0]))):
        values = [summarize(found) if (found := _of(seeds, name)) else None for name in metrics]
        means = [value and rounded(value.mean, value.spread) for value in values]
        rows.append([METHODS[place.method].label, place.codes or None, place.dim, *means, len(seeds)])
    columns = ["method", "K", "D", *metrics, "seeds"]
    return Results("Tables 2 and 3", "", "", columns, rows, listed=False)


def _best(study: Sequence[Comparison]) -> Results:
    """Table 4: every method at that of its places where its rFID, the mean over seeds, is lowest; the best first."""
    metrics = ["rfid", "lpips_alex", "ssim"]
    places: dict[str, list[tuple[list[float], int, int, int]]] = {}
    for (method, codes, dim), seeds in _by_place(study).items():
        if (codes, dim) in PLACES:
            means = [statistics.fmean(_of(seeds, name)) for name in metrics]
            places.setdefault(METHODS[method].label, []).append((means, codes, dim, len(seeds)))
    best = sorted((min(found), label) for label, found in places.items())
    rows: list[list[Value]] = [
        [label, codes, dim, *(rounded(mean, None) for mean in means), seeds, f"{len(places[label])} of {len(PLACES)}"]
        for (means, codes, dim, seeds), label in best
    ]
    return Results("Table 4", "", "", ["method", "K", "D", *metrics, "seeds", "places"], rows, listed=False)


def _map(drift: Sequence[Comparison]) -> Results:
    """Where drift decides: by codes per latent of a batch, each method in each of the conditions."""
    metrics = ["usage@300", "usage", "psnr", "lpips_alex", "relocated"]
    rows: list[tuple[Fraction, list[Value]]] = []
    for comparison in drift:
        names = {method.name: method.label for method in comparison.methods}
        for cell in comparison.cells:
            if cell.status == "done" and cell.codebook_size:
                share = Fraction(cell.codebook_size, LATENTS * cell.config["batch_size"])
                place: list[Value] = [f"{share}: {cell.point}", cell.codebook_size, cell.config["batch_size"]]
                values = [cell.values.get(name) for name in metrics]
                found = [None if value is None else rounded(value, None) for value in values]
                rows.append((share, [*place, names[cell.method], *found]))
    rows.sort(key=lambda row: (row[0], row[1][1]))
    columns = ["codes per latent", "K", "batch size", "method", *metrics]
    return Results("Where drift decides", "", "", columns, [row for _, row in rows], listed=False)


class At(NamedTuple):
    """A method with so many codes, none for the ceiling, of so many dimensions."""

    method: str
    codes: int
    dim: int


def _by_place(study: Sequence[Comparison]) -> dict[At, list[Cell]]:
    """The finished cells of Tables 2 and 3 and of Figure 3; of each seed the one that was kept last."""
    found: dict[At, dict[int, Cell]] = {}
    for comparison in study:
        for cell in comparison.cells:
            if cell.status == "done" and comparison.recipe in (*TABLES, FIGURE):
                place = At(cell.method, cell.codebook_size or 0, cell.config["code_dim"])
                found.setdefault(place, {})[cell.seed] = cell
    return {place: list(seeds.values()) for place, seeds in found.items()}


def _of(cells: Sequence[Cell], name: str) -> list[float]:
    return [value for cell in cells if (value := cell.values.get(name)) is not None]


def _cost(study: Sequence[Comparison]) -> Results:
    """How long each method trains until it has the PSNR that half of them have in the end, at each K and D.

    Of several runs at a K and D the one with most methods counts: times of different machines are not compared.
    """
    runs: dict[tuple[int, int], list[list[Value]]] = {}
    for comparison in (one for one in study if one.recipe in TABLES):
        results, found = aggregate(comparison), dict[tuple[int, int], list[list[Value]]]()
        reached = times_to_level(results)
        for row in results.rows:
            at, ms, first = reached.get((row.method.name, row.point)), row.mean_of("ms_per_step"), row.done[:1]
            if at is not None and ms is not None and first and first[0].codebook_size is not None:
                where = first[0].codebook_size, first[0].code_dim or 0
                after: list[Value] = ["never", None]
                if at.seconds is not None:
                    after = [round(at.seconds), round(1000 * at.seconds / ms)]
                place = f"K {where[0]}, D {where[1]}, {at.level:.2f} dB"
                found.setdefault(where, []).append([place, *where, row.method.label, at.level, *after, round(ms, 1)])
        for where, rows in found.items():
            runs[where] = max(runs.get(where, []), rows, key=len)
    order = [method.label for method in METHODS.values()]
    rows = [row for where in sorted(runs) for row in sorted(runs[where], key=lambda row: order.index(str(row[3])))]
    columns = ["place", "K", "D", "method", "PSNR (dB) to reach", "seconds", "steps", "ms per step"]
    return Results("What it costs", "", "", columns, rows, {"ms per step": 0}, listed=False)
