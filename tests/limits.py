"""Ends what a hostile input would make endless."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
