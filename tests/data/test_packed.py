import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftvq.data.packed import PackedNames, split_rows


@given(st.lists(st.binary(max_size=30)))
def test_names_come_back(names: list[bytes]) -> None:
    packed = PackedNames(iter(names))
    assert list(packed) == names
    assert [packed[index] for index in range(len(packed))] == names


def test_index_out_of_range() -> None:
    packed = PackedNames([b"a", b"b"])
    for index in (2, -1):
        with pytest.raises(IndexError, match="of 2 names"):
            packed[index]


def names(count: int) -> list[bytes]:
    return [b"%d.jpg" % number for number in range(count)]


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_splits_partition_the_names_with_the_share(share: float) -> None:
    train = split_rows(names(4000), "train", share, 0, "x")
    val = split_rows(names(4000), "val", share, 0, "x")
    assert sorted([*train, *val]) == list(range(4000))
    spread = (share * (1 - share) / 4000) ** 0.5
    assert abs(len(val) / 4000 - share) < 4 * spread


def test_a_name_keeps_its_split_when_others_come() -> None:
    few, many = (set(split_rows(names(count), "val", 0.1, 7, "x").tolist()) for count in (500, 900))
    assert few == {row for row in many if row < 500}


def test_the_seed_changes_what_is_held_out() -> None:
    first, second = (split_rows(names(500), "val", 0.1, seed, "x").tolist() for seed in (0, 1))
    assert first != second
    assert first == split_rows(names(500), "val", 0.1, 0, "x").tolist()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_small_sets_have_both_splits(count: int) -> None:
    for share in (0.001, 0.999):
        train = split_rows(names(count), "train", share, 0, "x")
        val = split_rows(names(count), "val", share, 0, "x")
        assert len(train) >= 1
        assert len(val) >= 1
        assert sorted([*train, *val]) == list(range(count))


def test_all_takes_everything() -> None:
    np.testing.assert_array_equal(split_rows(names(5), "all", 0.5, 0, "x"), np.arange(5))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"photos has 1 image, too few"):
        split_rows(names(1), "val", 0.05, 0, "photos")
    assert split_rows(names(1), "train", 0.05, 0, "photos").tolist() == [0]
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="val_share must lie between 0 and 1"):
            split_rows(names(9), "train", share, 0, "x")
