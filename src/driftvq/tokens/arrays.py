"""``.npy`` files that grow row by row in constant memory, and their checked, memory-mapped reading."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftvq.names import shortened_text

HEADER_BYTES = 256
"""Room kept for the header, so that it can be rewritten when the number of rows is known."""

BLOCK_ROWS = 4096
"""Rows that are worked on at once where an array may be too large for memory."""

Array = NDArray[Any]


def npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """The header of a version 1.0 ``.npy`` file, padded to ``HEADER_BYTES``."""
    sizes = "".join(f"{int(size)}, " for size in shape).rstrip()
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({sizes}), }}"
    room = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1).encode("latin1") + b"\n"


class GrowingArray:
    """An array on disk to which rows are appended.

    Args:
        path: the ``.npy`` file.
        dtype: of the elements; stored in little-endian order.
        row: shape of one row, ``()`` for single numbers.
        keep: bytes of rows to keep of an existing file; what follows them is dropped. None starts a new file.
    """

    def __init__(self, path: Path, dtype: str, row: tuple[int, ...] = (), keep: int | None = None) -> None:
        self.path, self.row = path, row
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.bytes = keep or 0
        if keep is None:
            self._file = path.open("wb+")
            self._file.write(bytes(HEADER_BYTES))
        else:
            self._file = path.open("rb+")
            keep_only(self._file, HEADER_BYTES + keep)

    def append(self, rows: Array) -> None:
        """Add rows; the array must hold whole rows, of any leading shape."""
        data = np.ascontiguousarray(rows, dtype=self.dtype).tobytes()
        self._file.write(data)
        self.bytes += len(data)

    def sync(self) -> None:
        """Everything appended so far is on the disk when this returns."""
        sync(self._file)

    def finish(self, shape: Sequence[int] | None = None) -> None:
        """Write the header and close; ``shape`` defaults to rows × the shape of a row."""
        rows = self.bytes // (self.dtype.itemsize * int(np.prod(self.row, dtype=np.int64)))
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, (rows, *self.row) if shape is None else shape))
        self.sync()
        self._file.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()


def keep_only(file: Any, size: int) -> None:
    """Cut an open file to a size that it must at least have, and go to its end."""
    found = file.seek(0, os.SEEK_END)
    if found < size:
        raise ValueError(f"{file.name} is truncated: {found} bytes, at least {size} were written")
    file.truncate(size)
    file.seek(size)


def sync(file: Any) -> None:
    """Hand a file's content to the disk."""
    file.flush()
    os.fsync(file.fileno())


def open_array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> Array:
    """A memory-mapped array of exactly this dtype and shape (None: any size); a wrong or truncated file is an error."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")  # unlike np.load, never a zip or a pickle
    except Exception as error:  # a header is parsed as Python: TokenError, SyntaxError, RecursionError and others
        reason = shortened_text(str(error))
        raise ValueError(f"{path} is truncated or not an array: {reason}") from error
    fits = len(array.shape) == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        got = shortened_text(f"{array.dtype} of shape {array.shape}")
        raise ValueError(f"{path} must be {dtype} of shape ({shortened_text(wanted)}), got {got}")
    return array


def check_range(tokens: Array, codebook_size: int) -> None:
    """Every index must name a code."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= codebook_size:
        wrong = low if low < 0 else high
        raise ValueError(f"indices must lie between 0 and {codebook_size - 1}, got {wrong}")


def write_offsets(shapes_file: Path, offsets_file: Path) -> None:
    """Where each image's tokens begin in the flat array, and where the last ones end."""
    shapes = np.load(shapes_file, mmap_mode="r")
    offsets, last = GrowingArray(offsets_file, "int64"), 0
    offsets.append(np.array([0]))
    for start in range(0, len(shapes), BLOCK_ROWS):
        ends = last + np.cumsum(shapes[start : start + BLOCK_ROWS].prod(axis=1, dtype=np.int64))
        offsets.append(ends)
        last = int(ends[-1])
    offsets.finish()
