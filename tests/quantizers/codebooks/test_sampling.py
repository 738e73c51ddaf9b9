from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.quantizers.codebooks.sampling import PLACES, Drawn, draw_rows, find_places, running_sum, take_over


def drawn(weight: np.ndarray, wanted: int, places: int = 40, step: int = 0) -> np.ndarray:
    """Places of the rows drawn, in their order; -1 where there is none."""
    rows = torch.arange(float(len(weight)))[:, None]
    found = draw_rows(rows, torch.from_numpy(weight).float(), torch.tensor(wanted), places, torch.tensor(step))
    return np.where(found.there, found.rows[:, 0], -1).astype(int)


@given(
    weight=st.lists(st.integers(0, 20), min_size=1, max_size=60),
    wanted=st.integers(1, 40),
    step=st.integers(0, 10**9),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_rows_are_those_of_systematic_sampling_each_once(weight: list[int], wanted: int, step: int) -> None:
    offset = np.float32((step % 4096) * np.float32(0.6180339887498949)) % 1
    reached, total = np.cumsum(weight), sum(weight)
    marks = (np.arange(wanted) + offset) / wanted * total
    clear = np.abs(marks[:, None] - reached).min() > 1e-3  # where rounding does not decide
    found = drawn(np.array(weight), wanted, step=step)
    places = found[found >= 0]
    assert len(set(places)) == len(places)
    assert all(weight[place] > 0 for place in places)
    if clear and total:
        expected = {int(np.searchsorted(reached, mark, side="right")) for mark in marks}
        assert set(places) == expected


def test_the_chance_of_a_row_is_its_weight() -> None:
    weight = np.array([1.0, 0, 4, 8, 9])
    counts = np.zeros(5)
    for step in range(3000):
        counts[drawn(weight, 1, step=step)[0]] += 1
    np.testing.assert_allclose(counts / 3000, weight / weight.sum(), atol=0.01)


@pytest.mark.parametrize(("wanted", "places", "expected"), [(10, 4, 4), (3, 100, 3), (100, 100, 60)])
def test_no_more_are_drawn_than_wanted_placed_or_there(wanted: int, places: int, expected: int) -> None:
    assert (drawn(np.ones(60), wanted, places) >= 0).sum() == expected


def test_rows_that_there_are_come_to_the_front() -> None:
    rows, count = Drawn(torch.arange(4.0)[:, None], torch.tensor([False, True, False, True])).in_front()
    assert rows[:, 0].tolist() == [1, 3, 0, 2]
    assert count.item() == 2


@pytest.mark.parametrize("n", [0, 4])
def test_without_weight_nothing_is_drawn(n: int) -> None:
    assert (drawn(np.zeros(n), 5) == -1).all()


def test_free_codes_are_taken_over_in_their_order() -> None:
    codes, free = torch.zeros(6, 2), torch.tensor([False, True, True, False, True, True])
    rows, weight, step = torch.tensor([[1.0, 1], [2, 2], [3, 3]]), torch.tensor([1.0, 0, 1]), torch.tensor(0)
    after, taken = take_over(codes, free, rows, weight, step)
    assert taken.tolist() == [False, True, False, False, True, False]
    assert after[:, 0].tolist() == [0, 1, 0, 0, 3, 0]
    places, meant = find_places(free, rows, weight, step, torch.tensor(2.0))
    assert meant.tolist() == [False, True, True, False, False, False]
    assert places[meant, 0].tolist() == [1, 3]
    assert take_over(codes, torch.zeros_like(free), rows, weight, step)[0].abs().sum() == 0


def test_so_many_codes_are_taken_over_at_once() -> None:
    codes, rows = torch.zeros(3 * PLACES, 1), torch.ones(9 * PLACES, 1)
    _, taken = take_over(codes, codes[:, 0] == 0, rows, rows[:, 0], torch.tensor(0))
    assert taken.sum() == PLACES


def test_as_many_lost_codes_as_latents_take_over_each_of_them_once() -> None:
    codes, x = torch.zeros(7, 1), torch.arange(1.0, 6.0)[:, None]
    free = torch.tensor([True, False, True, True, True, False, True])
    moved, taken = take_over(codes, free, x, torch.ones(5), torch.tensor(3))
    assert taken.tolist() == free.tolist()
    assert sorted(moved[free, 0].tolist()) == x.flatten().tolist()
    assert moved[~free].tolist() == [[0.0], [0.0]]
    few, taken = find_places(free, x, torch.ones(5), torch.tensor(3), most=torch.tensor(2))
    assert taken.sum() == len(few[taken].unique()) == 2
    every, _ = take_over(codes[:5], torch.ones(5, dtype=torch.bool), x, torch.ones(5), torch.tensor(3))
    assert sorted(every.flatten().tolist()) == x.flatten().tolist()


@given(weight=st.lists(st.floats(0, 5, width=32), min_size=1, max_size=200))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_running_sums_in_whole_numbers_are_those_of_numpy(weight: list[float]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        found = running_sum(torch.tensor(weight))
    finally:
        torch.use_deterministic_algorithms(False)
    expected = np.cumsum(np.array(weight, dtype=np.float64))
    np.testing.assert_allclose(found.double(), expected, rtol=1e-6, atol=1e-6 * max(expected[-1], 1e-30))


def test_no_running_sum_of_floats_is_asked_for_where_algorithms_are_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA it raises an error then."""
    asked, plain = list[torch.dtype](), torch.Tensor.cumsum

    def cumsum(values: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        asked.append(values.dtype)
        return plain(values, *args, **options)

    monkeypatch.setattr(torch.Tensor, "cumsum", cumsum)
    torch.use_deterministic_algorithms(True)
    try:
        drawn(np.array([1.0, 0, 4, 8, 9]), 3)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked
    assert not any(dtype.is_floating_point for dtype in asked)
