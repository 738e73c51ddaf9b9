"""Photographs that scikit-image and scikit-learn install: something real to train on before any data is at hand."""

from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from driftvq.data.images import Pixels, read_image
from driftvq.names import install_command

PHOTOGRAPHS = {
    "skimage/data": "astronaut.png chelsea.png coffee.png hubble_deep_field.jpg ihc.png motorcycle_left.png retina.jpg "
    "rocket.jpg",
    "sklearn/datasets/images": "china.jpg flower.jpg",
}
"""Colour photographs that come with the packages themselves; no downloads, and of the two motorcycles, one."""
TRAIN_SHARE, VAL_SHARE = 0.75, 0.2  # left and right part of each photograph's width; the strip between is neither's
LARGEST_SIDE = 800  # a photograph with a longer short side starts at half its size, so that none outweighs the others
SCALES = (1, 2, 4)


class Tile(NamedTuple):
    """A square of one photograph: ``side`` pixels at (left, top) after shrinking the region by ``scale``."""

    photograph: int
    split: str
    scale: int
    left: int
    top: int
    side: int


class EmbeddedSource:
    """Tiles of the embedded photographs; training and validation tiles come from regions that share no pixel."""

    def __init__(self, split: str, size: int = 64) -> None:
        if size < 1:
            raise ValueError(f"the tile size must be at least 1; received {size}")
        self.problems: list[tuple[str, str]] = []
        self.photographs = find_photographs()
        parts = ("train", "val") if split == "all" else (split,)
        shapes = [_read(path).shape[:2] for path in self.photographs]
        self.tiles = [tile for part in parts for n, shape in enumerate(shapes) for tile in _tiles(n, shape, part, size)]

    def __len__(self) -> int:
        return len(self.tiles)

    def name(self, index: int) -> str:
        """Photograph, split, scale and position, such as ``coffee_val_s2_x0000_y0064.png``."""
        number, split, scale, left, top, _ = self.tiles[index]
        return f"{self.photographs[number].stem}_{split}_s{scale}_x{left:04d}_y{top:04d}.png"

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        number, split, scale, left, top, side = self.tiles[index]
        return _shrunk_region(self.photographs[number], split, scale)[top : top + side, left : left + side].copy()


def find_photographs() -> list[Path]:
    """The photographs on disk, found without importing the packages."""
    found = []
    for place, names in PHOTOGRAPHS.items():
        package, _, folder = place.partition("/")
        roots = getattr(find_spec(package), "submodule_search_locations", None) or []
        paths = (Path(root, folder, name) for root in roots for name in names.split())
        found += [path for path in paths if path.is_file()]
    if not found:
        what = "without data given, photographs of scikit-image and scikit-learn are used, and neither is installed"
        raise ValueError(f"{what}: {install_command('tokenizer')}")
    return found


def region_columns(width: int, split: str) -> tuple[int, int]:
    """First and last-but-one column of a split's region."""
    return (0, int(width * TRAIN_SHARE)) if split == "train" else (width - int(width * VAL_SHARE), width)


def _tiles(photograph: int, shape: tuple[int, ...], split: str, size: int) -> list[Tile]:
    first, last = region_columns(shape[1], split)
    tiles = []
    scales = [scale for scale in SCALES if scale > 1 or min(shape) <= LARGEST_SIDE]
    for scale in scales:
        height, width = shape[0] // scale, (last - first) // scale
        if scale > scales[0] and min(height, width) < size:
            break
        side = min(size, height, width)  # smaller tiles of a small region are enlarged by the loader
        stride = max(side // 2, 1) if split == "train" else side  # those to train on overlap by half
        corners = product(range(0, height - side + 1, stride), range(0, width - side + 1, stride))
        tiles += [Tile(photograph, split, scale, left, top, side) for top, left in corners]
    return tiles


_read = lru_cache(maxsize=16)(read_image)


@lru_cache(maxsize=64)
def _shrunk_region(path: Path, split: str, scale: int) -> Pixels:
    """A split's region, cut before it is shrunk (mean of squares): no filter reaches into the other region."""
    photograph = _read(path)
    first, last = region_columns(photograph.shape[1], split)
    height, width = photograph.shape[0] // scale, (last - first) // scale
    region = photograph[: height * scale, first : first + width * scale]
    if scale == 1:
        return region
    return np.asarray(region.reshape(height, scale, width, scale, 3).mean(axis=(1, 3)) + 0.5, dtype=np.uint8)
