"""How far a method is from the best one of each condition: what a user risks who may not tune."""

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from driftvq.records.metric_table import metric


class Regret(NamedTuple):
    """Over all conditions: the mean and the largest distance to the best method, and the condition of the largest.

    A condition in which the method has no value makes both infinite.
    """

    mean: float
    worst: float
    where: Hashable


def regrets(values: Mapping[Hashable, Mapping[str, float]], name: str) -> dict[str, Regret]:
    """The regrets of all methods.

    ``r_mc = |v_mc - best_m' v_m'c|``; mean and maximum over the conditions c.

    >>> regrets({"small": {"a": 20.0, "b": 21.0}, "large": {"a": 24.0, "b": 22.0}}, "psnr")["b"]
    Regret(mean=1.0, worst=2.0, where='large')

    Args:
        values: of the metric, by condition and method.
        name: of the metric, which says what is better.

    Returns:
        By method, the smallest worst case first.
    """
    better = metric(name).better
    if better is None:
        raise ValueError(f"no value of {name!r} is better than another, so there is no regret")
    pick = max if better == "higher" else min
    best = {condition: pick(found.values()) for condition, found in values.items() if found}
    methods = dict.fromkeys(method for found in values.values() for method in found)
    found = {method: _regret(method, values, best) for method in methods}
    return dict(sorted(found.items(), key=lambda item: (item[1].worst, item[1].mean)))


def _regret(method: str, values: Mapping[Hashable, Mapping[str, float]], best: Mapping[Hashable, float]) -> Regret:
    away = {condition: abs(values[condition].get(method, math.inf) - best[condition]) for condition in best}
    where = max(away, key=lambda condition: away[condition])
    return Regret(math.fsum(away.values()) / len(away), away[where], where)
