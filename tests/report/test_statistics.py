import math
import statistics

import numpy as np
import pytest
from scipy import stats

from driftvq.report.results import paired_test, summarize, two_sided_p


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 8, 15, 40])
@pytest.mark.parametrize("t", [0.0, 0.1, -0.7, 1.5, 4.2, -12.0])
def test_p_is_that_of_scipy(t: float, df: int) -> None:
    assert two_sided_p(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_paired_test_is_that_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(1.0, 0.3, n), rng.normal(1.2, 0.3, n)
    test = paired_test(dict(enumerate(a)), dict(enumerate(b)))
    expected = stats.ttest_rel(a, b)
    assert test is not None
    assert test.p == pytest.approx(expected.pvalue, abs=1e-12)
    assert test.difference == pytest.approx(np.mean(a - b))
    assert test.spread == pytest.approx(np.std(a - b, ddof=1))


def test_only_common_seeds_are_paired() -> None:
    test = paired_test({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.5, 0: 0.8, 9: -100.0})
    assert test is not None
    assert test.n == 2
    assert test.difference == pytest.approx(0.35)
    assert paired_test({0: 1.0}, {1: 1.0}) is None


def test_one_pair_has_no_spread_and_equal_pairs_no_difference() -> None:
    one = paired_test({3: 1.0}, {3: 0.5})
    assert one is not None
    assert (one.difference, one.spread, one.p) == (0.5, None, None)
    same = paired_test({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert same is not None
    assert same.p == 1.0
    shifted = paired_test({0: 1.0, 1: 2.0}, {0: 2.0, 1: 3.0})
    assert shifted is not None
    assert shifted.p == 0.0


def test_summary_is_the_sample_standard_deviation() -> None:
    values = [3.1, 2.9, 3.6, 2.2]
    summary = summarize(values)
    assert summary.mean == pytest.approx(statistics.fmean(values))
    assert summary.spread == pytest.approx(statistics.stdev(values))
    assert summarize([2.0]).spread is None
    assert not math.isnan(summarize([2.0, 2.0]).spread or 0.0)
