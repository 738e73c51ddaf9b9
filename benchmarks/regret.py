"""How far each method is from the best one of each condition, on average and at worst."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from driftvq.records.metric_table import METRICS, metric
from tables import Results, Value, mean_of


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
        found = regrets(by_condition(tables, name), name)
        for method, of in found.items():
            rows.setdefault(method, [method]).extend([of.mean, of.worst, str(of.where)])
    if len({of.conditions for of in found.values()}) > 1:
        columns.append("conditions")
        for method, row in rows.items():
            row.append(found[method].conditions)
    return Results(tables[0].title, tables[0].command, tables[0].about, columns, list(rows.values()), digits)


def by_condition(tables: Sequence[Results], name: str) -> dict[Hashable, dict[str, float | None]]:
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
            found = None if cells[name] is None else mean_of(cells[name])
            values.setdefault(condition, {})[str(cells["method"])] = found
    return values
