"""Files that are either as they were or complete: written beside their place, flushed to the disk, then renamed.

And files of others, which are opened only if they are files.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".part"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to fill, which takes the place of ``path`` at the end; after an error nothing is left behind.

    >>> with replacing("results.json") as temporary:
    ...     temporary.write_text("{}")

    Raises:
        FileNotFoundError: the folder of ``path`` does not exist.
        IsADirectoryError: ``path`` is a folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return Path(path)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes; a pipe or a device is an error at once, where ``open`` might wait for ever.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open(path, "rb", opener=_open_at_once))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a pipe or device, not a file", os.fspath(path))
        on_error.pop_all()
        return file


def make_folder(folder: Path) -> None:
    """Make a folder with its parents; an error if something else has the name."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _publish(temporary: Path, path: Path) -> None:
    """Flush a file to the disk and give it its name, with the permissions that a new file would have."""
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o666 & ~umask)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Make it durable, where the system can."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
