"""How far something is, on stderr: a bar in a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from driftvq.names import needed

Item = TypeVar("Item")

QUIET_SECONDS, LOG_SECONDS = 2.0, 30.0  # what is done sooner says nothing; how far a log's lines are apart
WIDE = 110  # columns of a terminal that has room for everything


class Progress(AbstractContextManager["Progress"]):
    """A count, its speed, the time left, and whatever else is to be told.

    >>> with Progress("encoding", 2000) as progress:
    ...     progress.add(0)  # the clock starts; what was done earlier says nothing about the speed
    ...     progress.add(16)

    Without a ``total`` nobody knows how many there will be. Of several processes one is ``visible``.
    """

    def __init__(
        self, what: str, total: int | None, unit: str = "images", *, visible: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self._visible, self._clock, self._bar = visible, clock, None
        self._start: tuple[float, int] | None = None
        self._next_line = 0.0
        if visible and sys.stderr.isatty():
            self._bar = _bar()

    @property
    def wide(self) -> bool:
        return self._bar is None or self._bar.console.width >= WIDE

    def add(self, count: int) -> None:
        self.show(self.done + count)

    def show(self, done: int, text: str = "", last: bool = False) -> None:
        """So many are done; the first call starts the clock."""
        self.done, now = done, self._clock()
        if self._start is None:
            self._start, self._next_line = (now, done), now + QUIET_SECONDS
            if self._bar is not None:
                self._bar.add_task(self.what, total=self.total, completed=done, rate="", text=text)
                self._bar.start()
            return
        rate = (done - self._start[1]) / max(now - self._start[0], 1e-9)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, rate=f"{rate:,.1f} {self.unit}/s", text=text)
        elif self._visible and (last or now >= self._next_line):
            self._next_line = now + LOG_SECONDS
            sys.stderr.write(progress_line(self.what, done, self.total, rate, self.unit, text) + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(self, *exception: object) -> None:
        self.close()


def progress_line(what: str, done: int, total: int | None, rate: float, unit: str, text: str = "") -> str:
    """One line for a log file: ``step 500/2000 · 12.3 steps/s · 2:02 left · loss …``."""
    parts = [f"{what} {done}" if total is None else f"{what} {done}/{total}", f"{rate:,.1f} {unit}/s"]
    if total is not None and rate > 0:
        parts.append(f"{clock_time(max(0, total - done) / rate)} left")
    return " · ".join([*parts, text] if text else parts)


def clock_time(seconds: float) -> str:
    """``2:02``, or ``1:02:02`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def counted(items: Iterable[Item], what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Item]:
    """Pass items on; once that takes a while, say how many there were so far."""
    start, progress, count = clock(), None, 0
    for count, item in enumerate(items, start=1):
        yield item
        if count % 256 == 0 and clock() - start > QUIET_SECONDS:  # a look at the clock costs more than most items
            progress = progress or Progress(what, None, "files", clock=clock)
            progress.show(count)
    if progress is not None:
        progress.show(count, last=True)
        progress.close()


def _bar() -> Any:
    rich = needed("rich.progress", "the progress bar needs rich")
    text = rich.TextColumn
    numbers = (rich.MofNCompleteColumn(), text("{task.fields[rate]}"), rich.TimeRemainingColumn())
    columns = (text("{task.description}"), rich.BarColumn(bar_width=None), *numbers, text("{task.fields[text]}"))
    return rich.Progress(*columns, console=rich.Console(file=sys.stderr), redirect_stdout=False)
