"""Mean, spread, and the paired t-test, for the few numbers that seeds give."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


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


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation ``√(Σ(x - mean)² / (n - 1))`` of at least one value."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(mean, None, 1)
    return Summary(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)), len(values))


def paired_test(a: Mapping[int, float], b: Mapping[int, float]) -> Paired | None:
    """Compare ``a - b`` seed by seed: ``t = mean / (spread / √n)`` against Student's t with n - 1 degrees of freedom.

    Args:
        a: value by seed.
        b: value by seed; seeds that are in one of the two only do not count.

    Returns:
        The test; None without a common seed. Equal pairs have p = 1, constant differences p = 0.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return None
    mean, spread, n = summarize([a[seed] - b[seed] for seed in seeds])
    if spread is None:
        return Paired(mean, None, n, None)
    if spread == 0:
        return Paired(mean, spread, n, 1.0 if mean == 0 else 0.0)
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
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for power in range(1 if odd else 0, df - 1, 2):
        total += term
        term *= cos * cos * (power + 1) / (power + 2)
    nearer = 2 / math.pi * (theta + sin * total) if odd else sin * total
    return min(max(1 - nearer, 0.0), 1.0)
