"""Numbers from a seed and a place have to look like independent ones, across rows, columns, blocks and seeds."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, gumbel_r, kstest

from driftvq.functional.soft import COLUMN, ROW, gumbel, keys, uniform


def table(seed: int, rows: int = 400, columns: int = 300, draw=uniform) -> np.ndarray:  # type: ignore[no-untyped-def]
    key = torch.tensor(seed)
    drawn: np.ndarray = draw(keys(rows, key, ROW), keys(columns, key, COLUMN), torch.float64).numpy()
    return drawn


@pytest.mark.parametrize("seed", [0, 1, 2**62 - 1])
def test_numbers_are_uniform_and_their_gumbels_follow_the_law(seed: int) -> None:
    assert kstest(table(seed).ravel(), "uniform").pvalue > 1e-3
    assert kstest(table(seed, draw=gumbel).ravel(), gumbel_r.cdf).pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 7])
def test_rows_and_columns_are_independent(seed: int) -> None:
    numbers = table(seed) - 0.5
    for rows in (numbers, numbers.T):
        correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * rows.shape[1] ** 0.5
        assert np.abs(correlation).max() < 6
        assert correlation.std() == pytest.approx(1, abs=0.02)
        neighbours = np.histogram2d(rows[:, :-1].ravel(), rows[:, 1:].ravel(), bins=16)[0]
        assert chisquare(neighbours.ravel()).pvalue > 1e-3
    corners = numbers[:200, :150] * numbers[200:, :150] * numbers[:200, 150:] * numbers[200:, 150:]
    assert abs(corners.mean()) < 4 * corners.std() / corners.size**0.5


def test_seeds_give_independent_tables() -> None:
    tables = np.stack([table(seed).ravel() for seed in (0, 1, 2, 2**31, 2**62 - 1)])
    correlation = np.corrcoef(tables)[np.triu_indices(len(tables), 1)]
    assert np.abs(correlation).max() < 4.5 / tables.shape[1] ** 0.5


def test_a_number_depends_on_its_place_and_not_on_its_block() -> None:
    key = torch.tensor(3)
    rows, columns = keys(50, key, ROW), keys(20, key, COLUMN)
    parts = [uniform(rows[start : start + 7], columns, torch.float32) for start in range(0, 50, 7)]
    assert torch.equal(torch.cat(parts), uniform(rows, columns, torch.float32))
    assert torch.equal(keys(9, key, ROW), rows[:9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_finite_at_both_ends(dtype: torch.dtype) -> None:
    everything = torch.tensor([-(2**31), 2**31 - 1, 0, -1], dtype=torch.int32)
    drawn = uniform(torch.arange(2**16, dtype=torch.int32), everything, dtype)
    assert 0 < drawn.min() < 1e-5
    assert 1 - 1e-5 < drawn.max() < 1
    key = torch.tensor(0)
    assert gumbel(keys(4000, key, ROW), keys(4000, key, COLUMN), dtype).isfinite().all()
