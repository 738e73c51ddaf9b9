"""A sign of life while many files are looked through."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

QUIET_SECONDS = 2.0


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """Pass items on; once that takes two seconds, say on stderr how many there were so far.

    A terminal gets one line that is rewritten each second, a log file a line each half minute.
    """
    terminal = sys.stderr.isatty()
    start = said = time.monotonic()
    count = 0
    for count, item in enumerate(items, start=1):
        yield item
        if count % 256 == 0:  # a look at the clock costs more than most items
            now = time.monotonic()
            if now - start > QUIET_SECONDS and now - said > (1 if terminal else 30):
                said = now
                _say(f"{what}: {count:,}", terminal)
    if terminal and said > start:
        _say(f"{what}: {count:,}\n", terminal)


def _say(text: str, terminal: bool) -> None:
    sys.stderr.write(f"\r{text}" if terminal else f"{text}\n")
    sys.stderr.flush()
