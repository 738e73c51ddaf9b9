"""A folder that one process at a time works in."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that know no locks; there, nobody is kept out."""
POLL_SECONDS = 0.2


@contextmanager
def locked(folder: Path, work: str, seconds: float = 0.0) -> Iterator[int]:
    """Keep others out of a folder, and say who is in it: the system takes the lock away when the process dies.

    A process that inherits the descriptor on purpose (``pass_fds``) holds the lock too; one that is forked does not.

    Args:
        folder: which exists.
        work: what is done in it, for those who are kept out.
        seconds: how long to wait for it.

    Yields:
        The descriptor of the lock.

    Raises:
        ValueError: another process has it; the message names process and host.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    forked: list[int] = [descriptor]
    os.register_at_fork(after_in_child=lambda: _close(forked))
    try:
        _wait(descriptor, folder, monotonic() + seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, json.dumps({"work": work, "process": os.getpid(), "host": socket.gethostname()}).encode(), 0
        )
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
