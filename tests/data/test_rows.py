import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.data.rows import BLOCKS_TOGETHER, Order, permutation

counts = st.integers(1, 60)
seeds = st.integers(0, 2**40)


def plan(order: Order, steps: range, batch: int, rank: int = 0, world: int = 1) -> list[int]:
    return [
        next(order.candidates(position, 1)) for step in steps for position in order.positions(step, batch, rank, world)
    ]


@given(counts, seeds, st.integers(1, 20), st.integers(0, 30), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_restart_at_any_step_gives_the_same_indices(
    count: int, seed: int, batch: int, start: int, steps: int
) -> None:
    whole = plan(Order(count, seed), range(start + steps), batch)
    resumed = plan(Order(count, seed), range(start, start + steps), batch)
    assert resumed == whole[start * batch :]


@given(counts, seeds, st.integers(1, 8), st.integers(1, 4), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_ranks_share_out_the_global_batch(count: int, seed: int, batch: int, world: int, step: int) -> None:
    order = Order(count, seed)
    whole = plan(order, range(step, step + 1), batch * world)
    ranks = [plan(Order(count, seed), range(step, step + 1), batch, rank, world) for rank in range(world)]
    assert [index for rows in ranks for index in rows] == whole


@given(counts, seeds, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_each_epoch_shows_every_image_once(count: int, seed: int, batch: int) -> None:
    steps = -(-3 * count // batch)
    indices = plan(Order(count, seed), range(steps), batch)
    for epoch in range(3):
        assert sorted(indices[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(counts, seeds, st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_candidates_are_all_images_once(count: int, seed: int, position: int) -> None:
    order = Order(count, seed)
    candidates = list(order.candidates(position, count))
    assert sorted(candidates) == list(range(count))
    if position % count + 1 < count:
        assert candidates[1:2] == list(order.candidates(position + 1, 1))


def test_epochs_and_seeds_differ() -> None:
    orders = [permutation(50, seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="seed must be 0 or more; received -1"):
        Order(3, -1)


@given(st.lists(st.integers(0, 9), min_size=BLOCKS_TOGETHER + 1, max_size=60).filter(sum), seeds)
@settings(max_examples=40, deadline=None)
def test_shards_are_mixed_a_few_at_a_time(sizes: list[int], seed: int) -> None:
    ends = np.cumsum(sizes)
    order = permutation(int(ends[-1]), seed, 0, ends)
    assert sorted(order.tolist()) == list(range(ends[-1]))
    shards = np.searchsorted(ends, order, side="right")
    for shard in np.unique(shards):
        places = np.flatnonzero(shards == shard)
        inside = set(shards[places[0] : places[-1] + 1].tolist())
        assert len(inside) <= BLOCKS_TOGETHER


def test_few_shards_are_mixed_completely() -> None:
    np.testing.assert_array_equal(permutation(30, 5, 1, np.array([10, 20, 30])), permutation(30, 5, 1))
