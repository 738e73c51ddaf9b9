"""Reads a token folder: memory-mapped, with numpy alone."""

from collections.abc import Iterator
from itertools import accumulate, pairwise, starmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftvq.names import shortened_text
from driftvq.tokens.format import BATCHES, NAMES, OFFSETS, SHAPES, SIZES, TOKENS, TokenIndex, read_index, read_names

BLOCK_ROWS = 4096  # rows that are worked on at once where an array may be too large for memory
Array = NDArray[Any]


class Tokens:
    """The tokens of a set of images; nothing is read before it is asked for.

    >>> tokens = open_tokens("tokens/")  # doctest: +SKIP
    >>> len(tokens), tokens[0].shape, tokens[0].dtype  # doctest: +SKIP
    (2000, (16, 16), dtype('uint16'))

    ``index.model`` says which model made the tokens; ``array`` has them, ``n h w`` or ``n h w q``, flat when images
    differ in the shape of theirs; ``shapes`` and ``sizes`` have each image's, ``batch_sizes`` the images per call.
    """

    def __init__(self, folder: Path, index: TokenIndex) -> None:
        self.folder, self.index = folder, index
        n, dtype = index.n, index.model.dtype
        last = (index.model.indices_per_position,) if index.model.indices_per_position else ()
        self.sizes = open_array(folder / SIZES, "int32", (n, 2))
        self.batch_sizes = open_array(folder / BATCHES, "int32", (index.batches,))
        if index.shape is not None:
            self.array = open_array(folder / TOKENS, dtype, (n, *index.shape))
            self.shapes: Array = np.broadcast_to(np.array(index.shape, dtype=np.int32), (n, len(index.shape)))
            self._offsets: Array | None = None
        else:
            self.array = open_array(folder / TOKENS, dtype, (index.tokens,))
            self.shapes = open_array(folder / SHAPES, "int32", (n, 2 + len(last)))
            self._offsets = open_array(folder / OFFSETS, "int64", (n + 1,))
        self._check(last)

    def __len__(self) -> int:
        return self.index.n

    def __getitem__(self, number: int) -> Array:
        """The tokens of one image: ``h w`` or ``h w q``, read-only."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"image {number} of {len(self)}")
        number %= len(self)
        part = number if self._offsets is None else slice(*map(int, self._offsets[number : number + 2]))
        row: Array = self.array[part]
        return row.reshape(self.shapes[number])

    def __iter__(self) -> Iterator[Array]:
        return (self[number] for number in range(len(self)))

    def names(self) -> Iterator[str]:
        """The images' names, in order, one after the other from the disk."""
        count = 0
        for count, name in enumerate(read_names(self.folder / NAMES), start=1):
            if count > len(self):
                break
            yield name
        if count != len(self):
            got = count if count < len(self) else "more"
            raise ValueError(f"{self.folder / NAMES} must have {len(self)} names, got {got}")

    def batches(self) -> Iterator[range]:
        """Numbers of the images that the model encoded together."""
        return starmap(range, pairwise(accumulate(map(int, self.batch_sizes), initial=0)))

    def _check(self, last: tuple[int, ...]) -> None:
        """The arrays must agree with each other; looked at in blocks, since there may be millions of images."""
        if not len(self) or self.batch_sizes.min(initial=1) < 1 or self.batch_sizes.sum(dtype=np.int64) != len(self):
            raise ValueError(f"{self.folder / BATCHES} must add up to {len(self)} images, at least one")
        if self._offsets is not None and (self._offsets[0] != 0 or self._offsets[-1] != len(self.array)):
            raise ValueError(f"{self.folder / OFFSETS} does not fit the tokens")
        for start in range(0, len(self), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            sizes, shapes = self.sizes[rows].astype(np.int64), self.shapes[rows]
            grid = -(-sizes // self.index.model.downscale)
            if sizes.min() < 1 or np.any(shapes[:, :2] != grid) or np.any(shapes[:, 2:] != last):
                raise ValueError(f"{self.folder / SIZES} does not fit the shapes of the tokens")
            lengths = shapes.prod(axis=1, dtype=np.int64)
            if self._offsets is not None and np.any(np.diff(self._offsets[start : start + BLOCK_ROWS + 1]) != lengths):
                raise ValueError(f"{self.folder / OFFSETS} does not fit the shapes of the tokens")


def open_tokens(folder: str | Path) -> Tokens:
    """Open a token folder, after checking that its files are complete and agree with each other."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"no such token folder: {folder}")
    index = read_index(folder)
    if not index.complete:
        raise ValueError(f"{folder} is incomplete: {index.n} images so far; `driftvq encode … --resume` continues it")
    return Tokens(folder, index)


def open_array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> Array:
    """A memory-mapped array of exactly this dtype and shape (None: any size); a wrong or truncated file is an error."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")  # unlike np.load, never a zip or a pickle
    except Exception as error:  # a header is parsed as Python: TokenError, SyntaxError, RecursionError and others
        raise ValueError(f"{path} is truncated or not an array: {shortened_text(str(error))}") from error
    wanted = tuple(got if size is None else size for size, got in zip(shape, array.shape, strict=False))
    if array.dtype != np.dtype(dtype) or len(shape) != array.ndim or wanted != array.shape:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        got = shortened_text(f"{array.dtype} of shape {array.shape}")
        raise ValueError(f"{path} must be {dtype} of shape ({shortened_text(sizes)}), got {got}")
    return array


def check_range(tokens: Array, codebook_size: int) -> None:
    """Every index must name a code."""
    for found in (int(tokens.min()), int(tokens.max())):
        if not 0 <= found < codebook_size:
            raise ValueError(f"indices must lie between 0 and {codebook_size - 1}, got {found}")
