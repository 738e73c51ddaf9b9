"""A disk whose k-th change fails: opening for writing, writing, flushing to it, renaming, making and removing."""

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REMOVING = ("rmdir", "unlink")
CHANGING = ("fsync", "mkdir", "replace", "rename", *REMOVING)


SMALL_BUFFER = 64
"""Bytes that a full disk takes at once, so that it is full in the middle of a file too."""


class FailingDisk:
    """Counts changes below a folder and lets one of them fail.

    Args:
        root: only what happens below it counts.
        fails_at: number of the change that fails, from 0.
        for_good: all later ones fail too, as after the process was killed or the disk was pulled out.
        full: it has no more room, so nothing fails that removes a file.
        writes: whether each write counts, or only what has to do with whole files.
    """

    def __init__(self, root: Path, fails_at: int, for_good: bool, full: bool = False, writes: bool = True) -> None:
        self.root, self.fails_at, self.for_good = os.fspath(root), fails_at, for_good
        self.full, self.writes = full, writes
        self.changes, self.failed, self.mended = 0, False, False

    def change(self, path: object) -> None:
        """Count a change, or fail."""
        if isinstance(path, str | os.PathLike) and not os.fspath(path).startswith(self.root):
            return
        self.changes += 1
        if not self.mended and (self.changes == self.fails_at + 1 or (self.for_good and self.failed)):
            self.failed = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def mend(self) -> None:
        """Let nothing fail from now on."""
        self.mended = True

    def open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """``open``, with a file whose writes count."""
        if not set(mode) & set("wax+") or isinstance(file, int):
            return _open(file, mode, *args, **options)
        self.change(file)
        if not self.writes:
            return _open(file, mode, *args, **options)
        raw = _CountedFile(file, mode.replace("b", "").replace("t", ""), self)
        size = SMALL_BUFFER if self.full else io.DEFAULT_BUFFER_SIZE
        stream: Any = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        text = {name: options[name] for name in ("encoding", "newline") if name in options}
        return stream if "b" in mode else io.TextIOWrapper(stream, **text)


class _CountedFile(io.FileIO):
    def __init__(self, file: Any, mode: str, disk: FailingDisk) -> None:
        super().__init__(file, mode)
        self._disk, self._path = disk, os.fspath(file)

    def write(self, data: Any) -> int:
        self._disk.change(self._path)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._disk.change(self._path)
        return super().truncate(size)


_open, _mkdir = builtins.open, os.mkdir


@contextmanager
def failing_disk(
    root: Path, fails_at: int, for_good: bool = False, full: bool = False, writes: bool = True
) -> Iterator[FailingDisk]:
    """Everything that changes files below ``root`` passes the disk."""
    disk = FailingDisk(root, fails_at, for_good, full, writes)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            if not (real is _mkdir and Path(path).exists()):  # which no disk refuses for want of room
                disk.change(path)
            return real(path, *args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", disk.open)
        patch.setattr(io, "open", disk.open)
        for name in set(CHANGING) - set(REMOVING if full else ()):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield disk


def every_failure(root: Path, for_good: bool) -> Iterator[FailingDisk]:
    """A disk that fails at the first change, one at the second, and so on, until the last one does not fail.

    >>> for disk in every_failure(folder, for_good=False):  # doctest: +SKIP
    ...     with suppress(OSError):
    ...         work()
    """
    for number in range(10_000):
        with failing_disk(root, number, for_good) as disk:
            yield disk
        if not disk.failed:
            return
    raise AssertionError("a disk that failed ten thousand times")
