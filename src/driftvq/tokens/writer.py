"""Writes a token folder, batch by batch, in constant memory; what is written survives an interruption."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from driftvq.files import LOCK_FILE, locked
from driftvq.tokens import format as layout
from driftvq.tokens.reader import BLOCK_ROWS, Array, check_range

HEADER_BYTES = 256  # room kept for the header, so that it can be rewritten when the number of rows is known
COMMIT_SECONDS = 5.0


def npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """The header of a version 1.0 ``.npy`` file, padded to ``HEADER_BYTES``."""
    sizes = "".join(f"{int(size)}, " for size in shape).rstrip()
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({sizes}), }}"
    room = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1).encode("latin1") + b"\n"


class GrowingArray:
    """A ``.npy`` file to which rows of the shape ``row`` are appended, in little-endian order.

    ``keep`` is how many bytes of rows to keep of an existing file; what follows them is dropped. None starts a new one.
    """

    def __init__(self, path: Path, dtype: str, row: tuple[int, ...] = (), keep: int | None = None) -> None:
        self.row, self.dtype, self.bytes = row, np.dtype(dtype).newbyteorder("<"), keep or 0
        self.file = path.open("wb+" if keep is None else "rb+")
        if keep is None:
            self.file.write(bytes(HEADER_BYTES))
        else:
            keep_only(self.file, HEADER_BYTES + keep)

    def append(self, rows: Array) -> None:
        """Add rows; the array must hold whole rows, of any leading shape."""
        self.bytes += self.file.write(np.ascontiguousarray(rows, dtype=self.dtype).tobytes())

    def finish(self, shape: Sequence[int] | None = None) -> None:
        """Write the header and close; ``shape`` defaults to rows × the shape of a row."""
        rows = self.bytes // (self.dtype.itemsize * int(np.prod(self.row, dtype=np.int64)))
        self.file.seek(0)
        self.file.write(npy_header(self.dtype, (rows, *self.row) if shape is None else shape))
        sync(self.file)
        self.file.close()


def keep_only(file: BinaryIO, size: int) -> None:
    """Cut an open file to a size that it must at least have, and go to its end."""
    found = file.seek(0, os.SEEK_END)
    if found < size:
        raise ValueError(f"{file.name} is truncated: {found} bytes, at least {size} were written")
    file.truncate(size)
    file.seek(size)


def sync(file: BinaryIO) -> None:
    """Hand a file's content to the disk."""
    file.flush()
    os.fsync(file.fileno())


class TokenWriter(AbstractContextManager["TokenWriter"]):
    """Streams tokens into ``<out>.partial`` and renames it to ``out`` at the end.

    After :meth:`finish` the folder is complete. Without it, the batches written so far stay in the partial folder, and
    a writer with ``resume=True`` goes on after them, even if the process was killed. The partial folder is locked until
    then: a second writer of the same output is refused. ``overwrite`` replaces an existing token folder, and what an
    interrupted run left. A resumed run must have the same ``settings``, JSON values that the index keeps.
    """

    def __init__(
        self, out: str | Path, model: layout.TokenModel, settings: dict[str, Any] | None = None, *,
        overwrite: bool = False, resume: bool = False,
    ) -> None:  # fmt: skip
        self.out = Path(out)
        self.folder = layout.partial_folder(self.out)
        layout.check_output(self.out, overwrite=overwrite, resume=resume)
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as on_error:
            on_error.enter_context(locked(self.folder, layout.WORK))
            layout.check_output(self.out, overwrite=overwrite, resume=resume, held=True)
            self.index = layout.TokenIndex(model, json.loads(json.dumps(settings or {})))
            if resume:
                found = layout.read_index(self.folder)
                layout.check_same(self.folder, found, self.index)
                self.index = found
            else:
                for path in self.folder.iterdir():
                    if path.name != LOCK_FILE:
                        path.unlink()
            self._committed = time.monotonic()
            if not self.index.complete:
                self._open(resume)
                self.commit()
            self._held = on_error.pop_all()

    def write(
        self, tokens: Array, names: Sequence[str], size: tuple[int, int], skipped: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Append one batch, that is one call of the model: integers ``b h w`` or ``b h w q``.

        ``size`` is the height and width of its images; ``skipped``, name and reason of those left out on the way.
        """
        index = replace(self.index)
        if len(names):
            self._check(tokens, names)
            self._tokens.append(tokens)
            self._shapes.append(np.tile(tokens.shape[1:], (len(names), 1)))
            self._sizes.append(np.tile(size, (len(names), 1)))
            self._batches.append(np.array([len(names)]))
            index.name_bytes += _append(self._names, (json.dumps(name) for name in names))
            index.shape = tokens.shape[1:] if index.n == 0 or index.shape == tokens.shape[1:] else None
            index.size = size if index.n == 0 or index.size == size else None
            index.n, index.batches, index.tokens = index.n + len(names), index.batches + 1, index.tokens + tokens.size
        lines = (f"{json.dumps(name)}\t{' '.join(reason.split())}" for name, reason in skipped)
        index.skipped_bytes += _append(self._skipped, lines)
        index.skipped += len(skipped)
        self.index = index  # in one step: an interrupted batch does not count
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Make what was written safe from now on."""
        for file in self._files:
            sync(file)
        self.index.write(self.folder)
        self._committed = time.monotonic()

    def finish(self) -> Path:
        """Complete the folder and give it its name."""
        if not self.index.complete:
            if self.index.n == 0:
                raise ValueError(f"no image was encoded, {self.index.skipped} could not be read")
            self._complete()
        if self.index.shape is not None:
            (self.folder / layout.SHAPES).unlink(missing_ok=True)
        if self.index.skipped == 0:
            (self.folder / layout.SKIPPED).unlink(missing_ok=True)
        self._held.close()
        (self.folder / LOCK_FILE).unlink(missing_ok=True)
        layout.replace_folder(self.folder, self.out)
        return self.out

    def close(self) -> None:
        """Close the files and leave the folder as it is, to be resumed."""
        self._close_files()
        self._held.close()

    def __exit__(self, *exception: object) -> None:
        if self.index.complete:
            self._held.close()
            return
        try:
            self.commit()
        except (OSError, ValueError):  # a full disk, closed files: the last commit is intact, the first error matters
            if exception[1] is None:
                raise
        finally:
            self._close_files()
            if self.index.n == 0:  # nothing to resume
                shutil.rmtree(self.folder, ignore_errors=True)
            self._held.close()

    def _open(self, resume: bool) -> None:
        index = self.index
        columns = 3 if index.model.indices_per_position else 2

        def array(name: str, dtype: str, row: tuple[int, ...], rows: int) -> GrowingArray:
            used = rows * int(np.prod(row, dtype=np.int64)) * np.dtype(dtype).itemsize
            return GrowingArray(self.folder / name, dtype, row, used if resume else None)

        def text(name: str, used: int) -> BinaryIO:
            file = (self.folder / name).open("rb+" if resume else "wb+")
            keep_only(file, used)
            return file

        self._tokens = array(layout.TOKENS, index.model.dtype, (), index.tokens)
        self._shapes = array(layout.SHAPES, "int32", (columns,), index.n)
        self._sizes = array(layout.SIZES, "int32", (2,), index.n)
        self._batches = array(layout.BATCHES, "int32", (), index.batches)
        self._names = text(layout.NAMES, index.name_bytes)
        self._skipped = text(layout.SKIPPED, index.skipped_bytes)
        arrays = (self._tokens, self._shapes, self._sizes, self._batches)
        self._files = (*(array.file for array in arrays), self._names, self._skipped)

    def _close_files(self) -> None:
        for file in self._files:
            file.close()

    def _check(self, tokens: Array, names: Sequence[str]) -> None:
        model = self.index.model
        last = (model.indices_per_position,) if model.indices_per_position else ()
        if tokens.ndim != 3 + len(last) or tokens.shape[3:] != last or len(tokens) != len(names) or not tokens.size:
            layout = " ".join(["b h w", *map(str, last)])
            raise ValueError(f"tokens must be {layout} with a name each, got {tokens.shape} and {len(names)} names")
        check_range(tokens, model.codebook_size)

    def _complete(self) -> None:
        index = self.index
        self.commit()
        self._tokens.finish((index.tokens,) if index.shape is None else (index.n, *index.shape))
        for array in (self._shapes, self._sizes, self._batches):
            array.finish()
        self._close_files()
        if index.shape is None:  # where each image's tokens begin in the flat array, and where the last ones end
            shapes = np.load(self.folder / layout.SHAPES, mmap_mode="r")
            offsets, ends = GrowingArray(self.folder / layout.OFFSETS, "int64"), np.array([0])
            offsets.append(ends)
            for start in range(0, len(shapes), BLOCK_ROWS):
                ends = ends[-1] + np.cumsum(shapes[start : start + BLOCK_ROWS].prod(axis=1, dtype=np.int64))
                offsets.append(ends)
            offsets.finish()
        self.index = replace(index, complete=True)
        self.index.write(self.folder)


def _append(file: BinaryIO, lines: Iterator[str]) -> int:
    return sum(file.write(line.encode() + b"\n") for line in lines)
