"""From the cells of a comparison to its rows: mean and spread over seeds, the best, and who is as good."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Literal, NamedTuple

from driftvq.records.comparisons import Cell, Comparison, Method, Point
from driftvq.records.metric_table import ASIDE, METRICS, codebook_state, decimals, expected_usage, metric, written


class Summary(NamedTuple):
    """The mean of n values and their sample standard deviation, None for a single one."""

    mean: float
    spread: float | None
    n: int


class Paired(NamedTuple):
    """Mean of the differences, their spread, how many there are, and the two-sided p-value (None for one)."""

    difference: float
    spread: float | None
    n: int
    p: float | None


@dataclass(frozen=True)
class Row:
    """A method at one place of the sweep: a cell for each seed, and the values of the finished ones by metric.

    In the lead metric it has a ``rank`` among those that compete at the same place, None without a value, and but for
    the best itself a ``test`` against the best, seed by seed. ``within_spread`` is whether they differ by no more than
    both spreads together, ``|a - b| ≤ √(spread_a² + spread_b²)``; None for the best itself and without a spread.
    """

    method: Method
    point: Point
    cells: tuple[Cell, ...]
    values: dict[str, Summary]
    rank: int | None = None
    test: Paired | None = None
    within_spread: bool | None = None

    @property
    def done(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.status == "done")

    @property
    def failed(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.status == "failed")

    def by_seed(self, name: str) -> dict[int, float]:
        return {cell.seed: cell.values[name] for cell in self.done if name in cell.values}

    def mean_of(self, attribute: str) -> float | None:
        """The mean of a cell's attribute over the finished cells that have it, e.g. ``ms_per_step``."""
        found = [value for cell in self.done if (value := getattr(cell, attribute)) is not None]
        return fmean(found) if found else None

    @property
    def train_seconds(self) -> float | None:
        found = [cell.seconds["train"] for cell in self.done if "train" in cell.seconds]
        return fmean(found) if found else None

    @property
    def competes(self) -> bool:
        """Whether it can be the best: it has codes, and is not there as a yardstick, such as a plain autoencoder."""
        return self.method.group != "reference" and any(cell.codebook_size is not None for cell in self.done)

    @property
    def state(self) -> str | None:
        """Whether its codebook is alive, by its mean usage; None if that was not measured."""
        return self._state(self.values["usage"].mean) if "usage" in self.values else None

    @property
    def collapsed(self) -> dict[int, float]:
        """The usage of every seed whose codebook collapsed."""
        return {seed: used for seed, used in self.by_seed("usage").items() if self._state(used) == "collapsed"}

    def _state(self, usage: float) -> str:
        cell = self.done[0]
        known = cell.usage_latents is not None and cell.codebook_size is not None
        return codebook_state(usage, expected_usage(cell.codebook_size or 1, cell.usage_latents or 0) if known else 1.0)


@dataclass(frozen=True)
class Results:
    """The rows of a comparison, in the order of its methods and points.

    Attributes:
        lead: the metric that ranks: the first of the comparison that a finished cell has.
        columns: its metrics that a finished cell has, usage second, then those that only the cells know of.
        best: by metric and point, the name of the method with the best mean over the seeds that all have.
    """

    comparison: Comparison
    rows: tuple[Row, ...]
    lead: str
    columns: tuple[str, ...]
    best: dict[tuple[str, Point], str] = field(default_factory=dict)

    @property
    def points(self) -> tuple[Point, ...]:
        """The places of the sweep; one None without a sweep."""
        return self.comparison.sweep.values if self.comparison.sweep else (None,)

    @cached_property
    def digits(self) -> dict[str, int]:
        means = {name: [row.values[name].mean for row in self.rows if name in row.values] for name in self.columns}
        return {name: decimals(name, values) for name, values in means.items()}

    def ranked(self, point: Point) -> list[Row]:
        """The rows with a rank at a place, best first."""
        rows = [row for row in self.rows if row.point == point and row.rank is not None]
        return sorted(rows, key=lambda row: row.rank or 0)

    def mark(self, row: Row, name: str) -> Literal["best", "within"] | None:
        """Whether a value is the best of its metric and place, or within the spread of the best."""
        place = self.best.get((name, row.point)), row.point
        best = next((other for other in self.rows if (other.method.name, other.point) == place), None)
        if best is None or name not in row.values or not row.competes:
            return None
        if len({written(name, each.values[name].mean, self.digits[name]) for each in (best, row)}) == 1:
            return "best"  # readers see equal numbers
        return "within" if within_spread(row.values[name], best.values[name]) else None

    def count(self, status: str) -> int:
        return sum(cell.status == status for cell in self.comparison.cells)


def aggregate(comparison: Comparison) -> Results:
    """Group the cells by method and point, rank them by the lead metric, and test each against the best."""
    groups: dict[tuple[str, Point], list[Cell]] = {}
    for cell in comparison.cells:
        groups.setdefault((cell.method, cell.point), []).append(cell)
    rows = []
    for (method, point), cells in groups.items():
        found: dict[str, list[float]] = {}
        for name, value in (item for cell in cells if cell.status == "done" for item in cell.values.items()):
            found.setdefault(name, []).append(value)
        values = {name: summarize(seeds) for name, seeds in found.items()}
        rows.append(Row(comparison.method(method), point, tuple(cells), values))
    measured = list(dict.fromkeys(name for row in rows for name in row.values))
    columns = [name for name in comparison.metrics if name in measured]
    others = [name for name in measured if name not in (*columns, *ASIDE) and not name.endswith("_std")]
    columns += sorted(others, key=lambda name: list(METRICS).index(name) if name in METRICS else len(METRICS))
    lead = next((name for name in columns if metric(name).better), comparison.metrics[0])
    columns.sort(key=lambda name: (name != lead, name != "usage"))
    best: dict[tuple[str, Point], str] = {}
    for point in dict.fromkeys(row.point for row in rows):
        orders = {name: _order([row for row in rows if row.point == point], name) for name in columns}
        best |= {(name, point): order[0].method.name for name, order in orders.items() if len(order) > 1}
    return Results(comparison, tuple(_against_best(row, rows, lead) for row in rows), lead, tuple(columns), best)


def _order(rows: list[Row], name: str) -> list[Row]:
    """The rows that compete in a metric, best first, by the seeds that all of them have: some seeds are harder."""
    better = metric(name).better
    if better is None:
        return []
    found = [(row, row.by_seed(name)) for row in rows if name in row.values and row.competes]
    common = set.intersection(*(set(seeds) for _, seeds in found)) if found else set()
    means = [math.fsum(seeds[seed] for seed in common or seeds) / len(common or seeds) for _, seeds in found]
    order = sorted(zip(means, found, strict=True), key=lambda pair: pair[0] * (1 if better == "lower" else -1))
    return [row for _, (row, _) in order]


def _against_best(row: Row, rows: list[Row], lead: str) -> Row:
    order = _order([other for other in rows if other.point == row.point], lead)
    rank = next((i + 1 for i, other in enumerate(order) if other.method == row.method), None)
    if rank is None or rank == 1:
        return replace(row, rank=rank)
    test = paired_test(row.by_seed(lead), order[0].by_seed(lead))
    return replace(row, rank=rank, test=test, within_spread=within_spread(*on_common_seeds(row, order[0], lead)))


def on_common_seeds(a: Row, b: Row, name: str) -> tuple[Summary, Summary]:
    """The values of two rows over the seeds that both have; over all of each if there is none."""
    one, other = a.by_seed(name), b.by_seed(name)
    common = sorted(one.keys() & other.keys())
    if not common:
        return a.values[name], b.values[name]
    return summarize([one[seed] for seed in common]), summarize([other[seed] for seed in common])


def covers(point: Point, place: Point) -> bool:
    """Whether what was run at a point belongs to a place: "D 64" is part of "K 1024, D 64", and None of all."""
    return point is None or set(str(point).split(", ")) <= set(str(place).split(", "))


def within_spread(a: Summary, b: Summary) -> bool | None:
    """Whether two means differ by no more than both spreads together; None if one has no spread."""
    if a.spread is None or b.spread is None:
        return None
    return abs(a.mean - b.mean) <= math.hypot(a.spread, b.spread)


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation ``√(Σ(x - mean)² / (n - 1))`` of at least one value."""
    mean, n = fmean(values), len(values)
    return Summary(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1)) if n > 1 else None, n)


def paired_test(a: Mapping[int, float], b: Mapping[int, float]) -> Paired | None:
    """Compare ``a - b`` seed by seed: ``t = mean / (spread / √n)`` against Student's t with n - 1 degrees of freedom.

    Seeds that are in one of the two only do not count; None without a common one. Equal pairs have p = 1, constant
    differences p = 0.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return None
    mean, spread, n = summarize([a[seed] - b[seed] for seed in seeds])
    if not spread:
        return Paired(mean, spread, n, None if spread is None else float(mean == 0))
    return Paired(mean, spread, n, two_sided_p(mean / (spread / math.sqrt(n)), n - 1))


def two_sided_p(t: float, df: int) -> float:
    """The chance that Student's t with a whole number of degrees of freedom is at least as far from 0.

    With ``θ = atan(|t| / √df)`` the chance of being nearer is, for odd df,
    ``2/π (θ + sin θ (cos θ + 2/3 cos³θ + 2·4/(3·5) cos⁵θ + …))`` up to ``cos^(df - 2)``, and for even df
    ``sin θ (1 + 1/2 cos²θ + 1·3/(2·4) cos⁴θ + …)``, likewise (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    theta = math.atan(abs(t) / math.sqrt(df))
    sin, cos = math.sin(theta), math.cos(theta)
    odd = df % 2
    term, total = cos if odd else 1.0, 0.0
    for power in range(odd, df - 1, 2):
        total += term
        term *= cos * cos * (power + 1) / (power + 2)
    nearer = 2 / math.pi * (theta + sin * total) if odd else sin * total
    return min(max(1 - nearer, 0.0), 1.0)
