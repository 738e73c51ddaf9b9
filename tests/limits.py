"""Ends what a hostile input would make endless, in time or in memory."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    """An error if the block does not end; the time is many times what it takes, so that a busy machine passes."""

    def late(*_: object) -> None:
        raise AssertionError(f"still busy after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_within(more: int) -> Iterator[None]:
    """A MemoryError in the block if the process takes so many bytes more than it has taken."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
