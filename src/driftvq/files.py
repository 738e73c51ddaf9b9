"""Files: written whole or not at all, JSON that anybody may have written, folders that one process works in."""

import contextlib
import errno
import json
import math
import os
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO

from driftvq.names import shortened

TEMPORARY_SUFFIX = ".part"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to fill, which takes the place of ``path`` at the end; after an error nothing is left behind.

    >>> with replacing("results.json") as temporary:
    ...     temporary.write_text("{}")
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
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # as a new file would have
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    return Path(path)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes; a pipe or a device is an OSError at once, where ``open`` might wait for ever."""
    not_waiting = getattr(os, "O_NONBLOCK", 0)  # for somebody to write into a pipe
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open(path, "rb", opener=lambda name, flags: os.open(name, flags | not_waiting)))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a pipe or device, not a file", os.fspath(path))
        on_error.pop_all()
        return file


def make_folder(folder: Path) -> None:
    """Make a folder with its parents; an error if something else has the name."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)


def dated_folder(name: str) -> Path:
    """A folder in ``runs`` that does not exist, by date and time, which stand at the ``NOW`` of the name."""
    base = Path("runs") / name.replace("NOW", datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"))
    numbered = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(folder for folder in chain([base], numbered) if not folder.exists())


def _sync(path: Path) -> None:
    """Make it durable, where the system can."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Of a file that is read at once, and of a line: many times what is ever written, and no more than memory holds.
MAX_BYTES, MAX_LINE_BYTES = 1 << 28, 1 << 24


def read_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file; a ValueError that names the file, if it is larger or holds something else."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"{path} has {size} bytes; allowed: at most {max_bytes}")
        content = file.read()
    try:
        found = json.loads(content.decode(), parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {shortened(found)}; allowed: an object")
    return found


def _whole(digits: str) -> int:
    """A whole number that a float holds too, so that anybody may calculate with it."""
    if math.isinf(float(digits)):
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file with one per line, in its order; no file has none."""
    if not path.is_file():
        return []
    with open_regular(path) as file:
        return records_of(line.decode(errors="replace") for line in iter(partial(file.readline, MAX_LINE_BYTES), b""))


def records_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The lines that are an object with a ``step``; what a crash or a cut left half-written is not among them."""
    records = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line, parse_int=_whole)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that know no locks; there, nobody is kept out."""
POLL_SECONDS = 0.2


@contextlib.contextmanager
def locked(folder: Path, work: str, seconds: float = 0.0) -> Iterator[int]:
    """Keep others out of a folder, and say who is in it: the system takes the lock away when the process dies.

    A process that inherits the descriptor on purpose (``pass_fds``) holds the lock too; one that is forked does not.
    After so many seconds of waiting, it is an error that another process has it, which names its work and host.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    forked: list[int] = [descriptor]
    os.register_at_fork(after_in_child=lambda: _close(forked))
    try:
        _wait(descriptor, folder, monotonic() + seconds)
        holder = json.dumps({"work": work, "process": os.getpid(), "host": socket.gethostname()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield descriptor
    finally:
        _close(forked)


def _wait(descriptor: int, folder: Path, deadline: float) -> None:
    while fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if monotonic() >= deadline:
                raise ValueError(f"{_holder(descriptor)} is working in {folder}; wait for it or stop it") from None
            sleep(POLL_SECONDS)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return
            raise


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"another {found['work']}, process {found['process']} on {found['host']},"
    except (ValueError, KeyError, TypeError):  # it is just writing its name
        return "another process"


def _close(descriptors: list[int]) -> None:
    """Once: a number that is closed may be given to another file."""
    while descriptors:
        os.close(descriptors.pop())
