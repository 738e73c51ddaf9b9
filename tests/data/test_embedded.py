from pathlib import Path

import numpy as np
import pytest

from driftvq.data import open_source
from driftvq.data.embedded import SCALES, EmbeddedSource, find_photographs, region_columns
from driftvq.data.images import read_image


def covered(source: EmbeddedSource, photograph: int) -> np.ndarray:
    """Which pixels of the photograph at full size any tile was made of."""
    height, width = read_image(source.photographs[photograph]).shape[:2]
    mask = np.zeros((height, width), bool)
    for tile in source.tiles:
        if tile.photograph == photograph:
            first = region_columns(width, tile.split)[0]
            top, left, side = (value * tile.scale for value in (tile.top, tile.left, tile.side))
            mask[top : top + side, first + left : first + left + side] = True
    return mask


@pytest.mark.parametrize("size", [32, 64, 128])
def test_training_and_validation_share_no_pixel(size: int) -> None:
    train, val = EmbeddedSource("train", size), EmbeddedSource("val", size)
    for photograph, path in enumerate(train.photographs):
        of_train, of_val = covered(train, photograph), covered(val, photograph)
        assert of_train.any(), path
        assert of_val.any(), path
        assert not (of_train & of_val).any(), path
        gap = np.flatnonzero(of_val.any(0)).min() - np.flatnonzero(of_train.any(0)).max()
        assert gap > of_val.shape[1] // 25, path


def test_tiles_are_the_photographs_pixels() -> None:
    source = EmbeddedSource("val", 64)
    for index in (0, len(source) // 2, len(source) - 1):
        tile = source.tiles[index]
        photograph = read_image(source.photographs[tile.photograph]).astype(float)
        first = region_columns(photograph.shape[1], "val")[0]
        expected = np.zeros((64, 64, 3))
        for down in range(tile.scale):  # the mean of each square, summed up one shifted copy at a time
            for right in range(tile.scale):
                rows = tile.scale * (tile.top + np.arange(64)) + down
                columns = first + tile.scale * (tile.left + np.arange(64)) + right
                expected += photograph[rows][:, columns] / tile.scale**2
        assert np.abs(source.read(index) - expected).max() <= 0.5 + 1e-9


def test_a_few_thousand_tiles_of_every_photograph_and_scale() -> None:
    train, val = open_source(None, "train"), open_source(None, "val")
    assert 1000 < len(train) < 5000
    assert 80 < len(val) < 500
    assert isinstance(train, EmbeddedSource)
    assert {tile.photograph for tile in train.tiles} == set(range(len(train.photographs)))
    assert {tile.scale for tile in train.tiles} == set(SCALES)
    names = [source.name(index) for source in (train, val) for index in range(len(source))]
    assert len(set(names)) == len(names)
    assert len(open_source(None, "all")) == len(names)


def test_colour_photographs_only() -> None:
    photographs = find_photographs()
    assert len(photographs) >= 8
    for path in photographs:
        image = read_image(path).astype(int)
        assert np.abs(image[..., 0] - image[..., 2]).mean() > 1, path


@pytest.mark.parametrize("size", [8, 48, 256, 512])
def test_any_size_gives_tiles_no_larger_than_it(size: int) -> None:
    source = open_source(None, "val", size=size)
    assert len(source) >= 10
    shape = source.read(len(source) - 1).shape
    assert shape[0] == shape[1] <= size


def test_a_tile_may_be_changed_by_its_owner() -> None:
    source = EmbeddedSource("train", 64)
    before = source.read(0).copy()
    source.read(0)[:] = 0
    np.testing.assert_array_equal(source.read(0), before)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftvq.data.embedded.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install .*pillow>=10"):
        open_source(None)
    with pytest.raises(ValueError, match="tile size must be at least 1; received 0"):
        EmbeddedSource("train", 0)


def test_one_package_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("driftvq.data.embedded.find_spec", lambda name: find_spec(name) if name == "sklearn" else None)
    assert sorted(path.name for path in find_photographs()) == ["china.jpg", "flower.jpg"]
    assert isinstance(find_photographs()[0], Path)
