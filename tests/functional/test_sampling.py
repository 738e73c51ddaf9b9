import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from driftvq.functional import random_positions


def positions(high, count, seed):
    return random_positions(torch.tensor(high), count, torch.tensor(seed))


@given(high=st.integers(1, 200), count=st.integers(0, 300), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_distinct_and_in_range(high, count, seed):
    drawn = positions(high, count, seed)
    assert drawn.dtype == torch.int64
    assert drawn.shape == (count,)
    assert ((drawn >= 0) & (drawn < high)).all()
    distinct = min(high, count)
    assert len(drawn[:distinct].unique()) == distinct


@given(high=st.integers(1, 20), count=st.integers(1, 70), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_beyond_the_range_the_order_repeats(high, count, seed):
    drawn = positions(high, count, seed)
    assert torch.equal(drawn, drawn[torch.arange(count) % high])


def test_nothing_to_draw_from_gives_zeros():
    assert positions(0, 4, 1).tolist() == [0, 0, 0, 0]


def test_a_function_of_the_seed():
    assert torch.equal(positions(1000, 50, 7), positions(1000, 50, 7))
    assert not torch.equal(positions(1000, 50, 7), positions(1000, 50, 8))


def test_fewer_are_the_first_of_more():
    assert torch.equal(positions(1000, 10, 3), positions(1000, 500, 3)[:10])


@pytest.mark.parametrize("global_seed", [0, 1])
def test_the_global_random_state_has_no_part(global_seed):
    torch.manual_seed(global_seed)
    before = torch.get_rng_state()
    drawn = positions(100, 10, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(positions(100, 10, 5), drawn)


@pytest.mark.parametrize("place", [0, 9])
def test_uniform_over_seeds(place):
    drawn = torch.stack([positions(20, 10, seed)[place] for seed in range(2000)])
    assert chisquare(drawn.bincount(minlength=20).numpy()).pvalue > 1e-3
