"""A comparison as it lies on disk: what was asked, and one cell for each method, place in the sweep and seed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftvq.names import check_name
from driftvq.records.fields import Fields, read_fields

COMPARISON_FILE = "comparison.json"
CELL_FILE = "cell.json"
GROUPS = ("ours", "paper", "peer", "reference")
SCALES = ("smoke", "laptop", "paper")
STATUSES = ("done", "failed", "running", "waiting")

Point = int | float | str | None
"""A place in the sweep, e.g. a codebook size; None without a sweep, and for methods that the sweep does not touch."""


@dataclass(frozen=True)
class Method:
    """A contestant: its unique name, what readers see, and whose it is (one of ``GROUPS``)."""

    name: str
    label: str
    group: str


@dataclass(frozen=True)
class Sweep:
    """What was varied."""

    field: str
    values: tuple[Any, ...]
    label: str


@dataclass(frozen=True)
class PaperRow:
    """What the paper reports of one method."""

    method: str
    label: str
    point: Point
    values: dict[str, float]


@dataclass(frozen=True)
class Paper:
    """What the paper reports, where, and for which setting."""

    source: str
    setting: str
    rows: tuple[PaperRow, ...]


@dataclass(frozen=True)
class Cell:
    """One method at one place of the sweep with one seed: what it is, and how it went."""

    folder: Path
    method: str
    point: Point
    seed: int
    status: str
    error: str | None = None
    log: str = "log.txt"
    config: dict[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    n: int | None = None
    missing: tuple[str, ...] = ()
    codebook_size: int | None = None
    code_dim: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int | None = None
    ms_per_step: float | None = None
    peak_memory_mb: float | None = None
    parameters: dict[str, float] = field(default_factory=dict)

    @property
    def log_path(self) -> Path:
        """Where its log is."""
        return self.folder / self.log


@dataclass(frozen=True)
class Comparison:
    """What was compared, and all cells, those that are still to be made included."""

    folder: Path
    name: str
    recipe: str
    title: str
    scale: str
    question: str
    command: str
    created: str
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    sweep: Sweep | None
    methods: tuple[Method, ...]
    environment: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]
    paper: Paper | None
    notes: tuple[str, ...]
    cells: tuple[Cell, ...]

    def method(self, name: str) -> Method:
        """The method of that name."""
        return next(method for method in self.methods if method.name == name)


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Read a comparison.

    Args:
        folder: with ``comparison.json`` and ``cells/``.

    Raises:
        FileNotFoundError: there is no such folder, or no comparison in it.
        ValueError: a file is damaged or contradicts another; the message names it.
    """
    folder = Path(folder)
    path = folder / COMPARISON_FILE
    if not path.is_file():
        raise FileNotFoundError(_no_comparison(folder))
    fields = read_fields(path)
    sweep, paper = fields.optional("sweep"), fields.optional("paper")
    values: dict[str, Any] = {
        "folder": folder,
        "seeds": fields.wholes("seeds"),
        "metrics": fields.texts("metrics"),
        "sweep": None if sweep is None else Sweep(sweep.text("field"), sweep.points("values"), sweep.text("label")),
        "methods": tuple(_method(each) for each in fields.objects("methods")),
        "scale": fields.choice("scale", SCALES),
        "paper": None if paper is None else _paper(paper),
        "notes": fields.texts("notes", ()),
    }
    values |= {key: fields.text(key) for key in ("name", "recipe", "title", "question", "command", "created")}
    values |= {key: fields.mapping(key) for key in ("environment", "data", "config")}
    for key in ("seeds", "metrics", "methods"):
        if not values[key]:
            raise ValueError(f"{path}: {key!r} is empty; allowed: at least one")
    names = [method.name for method in values["methods"]]
    _no_repeats(f"{path}: 'methods'", names)
    _no_repeats(f"{path}: 'seeds'", values["seeds"])
    return Comparison(**values, cells=_cells(folder, names, values["seeds"], values["sweep"]))


def _no_comparison(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no folder {folder}"
    below = sorted(str(path.parent) for path in folder.glob(f"*/{COMPARISON_FILE}"))
    hint = f"; comparisons below it: {', '.join(below)}" if below else ""
    return f"{folder} is no comparison: it has no {COMPARISON_FILE}{hint}"


def _method(fields: Fields) -> Method:
    name = fields.text("name")
    return Method(name, fields.text("label", name), fields.choice("group", GROUPS))


def _paper(fields: Fields) -> Paper:
    rows = [
        PaperRow(row.text("method"), row.text("label", row.text("method")), row.point("point"), row.numbers("values"))
        for row in fields.objects("rows")
    ]
    return Paper(fields.text("source"), fields.text("setting"), tuple(rows))


def _cells(folder: Path, methods: list[str], seeds: tuple[int, ...], sweep: Sweep | None) -> tuple[Cell, ...]:
    """The cells of the folder, in the order of methods, points and seeds, and those that are still to come."""
    cells: dict[tuple[str, Point, int], Cell] = {}
    for path in sorted(folder.glob(f"cells/*/{CELL_FILE}")):
        cell = _cell(path, methods)
        key = cell.method, cell.point, cell.seed
        if key in cells:
            raise ValueError(f"{path}: the same method, point and seed as {cells[key].folder / CELL_FILE}")
        if sweep is not None and cell.point is not None and cell.point not in sweep.values:
            raise ValueError(f"{path}: 'point' is {cell.point!r}; allowed: {', '.join(map(str, sweep.values))}")
        if sweep is None and cell.point is not None:
            raise ValueError(f"{path}: 'point' is {cell.point!r}; allowed: null, the comparison has no sweep")
        cells[key] = cell
    return tuple(_in_order(cells, folder, methods, seeds, sweep))


def _in_order(
    cells: dict[tuple[str, Point, int], Cell],
    folder: Path,
    methods: list[str],
    seeds: tuple[int, ...],
    sweep: Sweep | None,
) -> Iterator[Cell]:
    for method in methods:
        points: tuple[Point, ...] = (None,) if sweep is None else sweep.values
        if sweep is not None and any(key[:2] == (method, None) for key in cells):  # the sweep does not touch it
            points = (None, *(point for point in points if any(key[:2] == (method, point) for key in cells)))
        for point in points:
            others = {key[2] for key in cells if key[:2] == (method, point)} - set(seeds)
            for seed in (*seeds, *sorted(others)):
                waiting = Cell(folder / "cells", method, point, seed, "waiting")
                yield cells.get((method, point, seed), waiting)


def _cell(path: Path, methods: list[str]) -> Cell:
    fields = read_fields(path)
    try:
        method = check_name("method", fields.text("method"), methods)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Cell(
        folder=path.parent,
        method=method,
        point=fields.point("point"),
        seed=fields.whole("seed"),
        status=fields.choice("status", STATUSES),
        error=None if fields.data.get("error") is None else fields.text("error"),
        log=fields.text("log", "log.txt"),
        config=fields.mapping("config"),
        values=fields.numbers("values"),
        n=fields.whole("n", None),
        missing=fields.texts("missing", ()),
        codebook_size=fields.whole("codebook_size", None),
        code_dim=fields.whole("code_dim", None),
        seconds=fields.numbers("seconds"),
        steps=fields.whole("steps", None),
        ms_per_step=fields.number("ms_per_step"),
        peak_memory_mb=fields.number("peak_memory_mb"),
        parameters=fields.numbers("parameters"),
    )


def _no_repeats(where: str, values: Any) -> None:
    repeated = sorted({str(value) for value in values if list(values).count(value) > 1})
    if repeated:
        raise ValueError(f"{where} names {', '.join(repeated)} more than once; allowed: once")
