"""A comparison as it lies on disk: what was asked, and one cell for each method, place in the sweep and seed.

``comparison.json``, ``originals/``, and for each cell a folder in ``cells/`` with ``cell.json``, ``codes.json``,
``reconstructions/``, its model, its log and what is kept of its training (:mod:`driftvq.records.runs`).
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from driftvq.names import check_name
from driftvq.records.codec import read_record, write_record

COMPARISON_FILE, CELL_FILE, CODES_FILE, LOG_FILE = "comparison.json", "cell.json", "codes.json", "log.txt"
# Folders; ``training`` is in a cell as long as its training is not finished.
CELLS, ORIGINALS, RECONSTRUCTIONS, TRAINING = "cells", "originals", "reconstructions", "training"

Group = Literal["ours", "paper", "ablation", "peer", "reference"]
Status = Literal["done", "failed", "running", "waiting"]
# A place in the sweep, e.g. a codebook size; None without a sweep, and for methods that the sweep does not touch.
Point = int | float | str | None
GROUP_LABELS: dict[Group, str] = {group: "paper's form" if group == "paper" else group for group in get_args(Group)}


@dataclass(frozen=True)
class Method:
    """A contestant: its unique name, what readers see, and whose it is."""

    name: str
    label: str
    group: Group


@dataclass(frozen=True)
class Sweep:
    """What was varied: a setting, or conditions of several settings."""

    field: str
    values: tuple[Point, ...]
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
class Place:
    """Where a cell belongs."""

    method: str
    point: Point
    seed: int


@dataclass(frozen=True)
class Task:
    """What the process of a cell has to know beside its config."""

    images: int | None = None  # to evaluate on; None: all
    metrics: tuple[str, ...] = ()
    after: str | None = None  # the cell whose network it takes over
    afterwards: bool = False  # whether it gets its codebook after training, by k-means
    kmeans_images: int | None = None  # training images for that; None: all
    probes: tuple[int, ...] = ()  # steps at which usage is counted over enough latents, as it is at the end


@dataclass(frozen=True)
class Cell:
    """One method at one place of the sweep with one seed: what it is, and how it went."""

    folder: Path = field(metadata={"stored": False})
    method: str
    point: Point
    seed: int
    status: Status
    error: str | None = None
    log: str = LOG_FILE
    config: dict[str, Any] = field(default_factory=dict)
    task: Task = Task()
    values: dict[str, float] = field(default_factory=dict)  # what was measured, by metric (metric_table.METRICS)
    n: int | None = None  # images behind the values
    usage_over: str | None = None  # the latents that usage and perplexity were counted over, for readers
    usage_latents: int | None = None  # and how many
    missing: tuple[str, ...] = ()  # metrics that could not be measured, and why
    codebook_size: int | None = None
    code_dim: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # "train", "evaluate"; "unfinished": interrupted training
    steps: int | None = None
    ms_per_step: float | None = None
    peak_memory_mb: float | None = None
    parameters: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return Place(self.method, self.point, self.seed)

    @property
    def log_path(self) -> Path:
        return self.folder / self.log


@dataclass(frozen=True)
class Codes:
    """How often each code was selected, and where codes (``points`` shows ``point_codes``) and latents lie on a map."""

    counts: tuple[int, ...]
    points: tuple[tuple[float, ...], ...] = ()
    point_codes: tuple[int, ...] = ()
    latents: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if min(self.counts, default=0) < 0:
            raise ValueError(f"counts must be at least 0, got {min(self.counts)}")


@dataclass(frozen=True)
class Comparison:
    """What was compared, and all cells, those that are still to be made included."""

    folder: Path = field(metadata={"stored": False})
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
    places: tuple[Place, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    paper: Paper | None = None
    notes: tuple[str, ...] = ()
    request: dict[str, Any] = field(default_factory=dict)
    cells: tuple[Cell, ...] = field(default=(), metadata={"stored": False})

    def method(self, name: str) -> Method:
        return next(method for method in self.methods if method.name == name)


def read_cell(folder: Path) -> Cell:
    """The cell of a folder."""
    return read_record(Cell, folder / CELL_FILE, folder=folder)


def write_cell(cell: Cell) -> Cell:
    """Write ``cell.json``, whole or not at all."""
    write_record(cell.folder / CELL_FILE, cell)
    return cell


def update_cell(folder: Path, **changes: Any) -> Cell:
    """Change what ``cell.json`` says, and return all of it."""
    return write_cell(replace(read_cell(folder), **changes))


def read_codes(cell: Cell) -> Codes | None:
    """The codes of a cell; None if it has none, or if they cannot be read."""
    try:
        return read_record(Codes, cell.folder / CODES_FILE)
    except (OSError, ValueError):
        return None


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Read a comparison with its cells, in the order of its places.

    Raises:
        FileNotFoundError: there is no such folder, or no comparison in it.
        ValueError: a file is damaged or contradicts another; the message names it.
    """
    path = (folder := Path(folder)) / COMPARISON_FILE
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    if not path.is_file():
        below = sorted(str(path.parent) for path in folder.glob(f"*/{COMPARISON_FILE}"))
        hint = f"; comparisons below it: {', '.join(below)}" if below else ""
        raise FileNotFoundError(f"{folder} is no comparison: it has no {COMPARISON_FILE}{hint}")
    comparison = read_record(Comparison, path, folder=folder)
    names = [method.name for method in comparison.methods]
    for key, values in (("seeds", comparison.seeds), ("metrics", comparison.metrics), ("methods", names)):
        if not values:
            raise ValueError(f"{path}: {key!r} is empty; allowed: at least one")
        repeated = sorted({str(value) for value in values if list(values).count(value) > 1})
        if repeated:
            raise ValueError(f"{path}: {key!r} names {', '.join(repeated)} more than once; allowed: once")
    for place in comparison.places:
        check_name("method", place.method, names, file=path)
    cells: dict[Place, Cell] = {}
    for path in sorted(folder.glob(f"{CELLS}/*/{CELL_FILE}")):
        cell = read_cell(path.parent)
        check_name("method", cell.method, names, file=path)
        if cell.place not in comparison.places:
            raise ValueError(f"{path}: {cell.place} is none of the places that {COMPARISON_FILE} names")
        if cell.place in cells:
            raise ValueError(f"{path}: the same method, point and seed as {cells[cell.place].folder / CELL_FILE}")
        cells[cell.place] = cell
    for at in comparison.places:
        cells.setdefault(at, Cell(folder / CELLS, at.method, at.point, at.seed, "waiting"))
    return replace(comparison, cells=tuple(cells[place] for place in comparison.places))
