"""A disk that is full at the k-th thing that is asked of it."""

import errno
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest


class FaultyDisk:
    """Counts what Python asks a file system to do for writing, and refuses one of the requests.

    Requests are: to open a file for writing, to write to it, to flush it to the disk, to rename, to make a folder or a
    temporary file.

    Args:
        patch: pytest's.
        fails_at: the request that is refused, from 1; 0: none.
        writes: whether each write counts, or only what has to do with whole files.
    """

    def __init__(self, patch: pytest.MonkeyPatch, fails_at: int = 0, writes: bool = True) -> None:
        self.requests, self.fails_at, self.writes = 0, fails_at, writes
        for module, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (tempfile, "mkstemp")):
            patch.setattr(module, name, self._counted(getattr(module, name)))
        self._mkdir, make = os.mkdir, self._counted(os.mkdir)
        patch.setattr(os, "mkdir", lambda path, *mode: (self._mkdir if Path(path).exists() else make)(path, *mode))
        self._open = io.open
        patch.setattr(io, "open", self._opened)

    def request(self) -> None:
        """One more."""
        self.requests += 1
        if self.requests == self.fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _counted(self, function: Any) -> Any:
        def count_and_call(*arguments: Any, **options: Any) -> Any:
            self.request()
            return function(*arguments, **options)

        return count_and_call

    def _opened(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return self._open(file, mode, *arguments, **options)
        self.request()
        opened = self._open(file, mode, *arguments, **options)
        return _File(opened, self) if self.writes else opened


class _File:
    def __init__(self, file: Any, disk: FaultyDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        self._disk.request()
        return int(self._file.write(data))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
