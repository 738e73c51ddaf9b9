import math

import numpy as np
import pytest
from benchmarks.regret import regrets


def test_regrets_are_the_distances_to_the_best_of_each_condition() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(14, 5))
    values = {place: {f"m{m}": table[place, m] for m in range(5)} for place in range(14)}
    for name, best in (("psnr", table.max(axis=1)), ("lpips_alex", table.min(axis=1))):
        found = regrets(values, name)
        away = np.abs(table - best[:, None])
        assert list(found) == [f"m{m}" for m in away.max(axis=0).argsort()]
        for m in range(5):
            assert found[f"m{m}"].mean == pytest.approx(away[:, m].mean())
            assert found[f"m{m}"].worst == pytest.approx(away[:, m].max())
            assert found[f"m{m}"].where == away[:, m].argmax()


def test_a_method_that_failed_somewhere_has_no_finite_worst_case() -> None:
    found = regrets({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.0, "y": None}}, "psnr")
    assert (found["y"].worst, found["y"].where) == (math.inf, "b")
    assert found["x"] == (0.5, 1.0, "a", 2)


def test_a_method_that_was_run_in_fewer_conditions_comes_behind_the_others_with_what_is_known_of_it() -> None:
    found = regrets({"a": {"x": 1.0, "y": 2.0, "z": 2.5}, "b": {"x": 1.0}}, "psnr")
    assert list(found) == ["x", "z", "y"]
    assert found["x"] == (0.75, 1.5, "a", 2)
    assert found["y"] == (0.5, 0.5, "a", 1)


def test_a_metric_without_a_direction_has_no_regret() -> None:
    with pytest.raises(ValueError, match="no value of 'relocated' is better"):
        regrets({"a": {"x": 1.0}}, "relocated")
