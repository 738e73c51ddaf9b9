"""The progress of encoding and decoding: images, images per second, time to go."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], object]
"""Called with the number of images dealt with so far, for the first time before any work."""

LOG_SECONDS = 30.0


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Progress]:
    """A bar on stderr; where that is no terminal, a line each half minute."""
    if not sys.stderr.isatty():
        yield log_progress(what, total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise ValueError('the progress bar needs rich: pip install "driftvq[tokenizer]"') from error
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task, begun = bar.add_task(what, total=total, rate=""), False

        def show(done: int) -> None:
            nonlocal begun
            if begun:
                speed = bar.tasks[0].speed
                bar.update(task, completed=done, rate=f"{speed:,.1f} images/s" if speed else "")
            else:
                bar.reset(task, completed=done)  # what an earlier run did says nothing about the speed of this one
                begun = True

        yield show


def log_progress(
    what: str, total: int, *, every: float = LOG_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Says how far it is, how fast and how long to go, in one line of stderr each ``every`` seconds."""
    start: tuple[float, int] | None = None
    said = 0.0

    def show(done: int) -> None:
        nonlocal start, said
        now = clock()
        if start is None:
            start, said = (now, done), now
        if now - said < every or done == start[1]:
            return
        said, rate = now, (done - start[1]) / (now - start[0])
        left = time.strftime("%H:%M:%S", time.gmtime((total - done) / rate)) if done < total else "00:00:00"
        sys.stderr.write(f"{what}: {done:,} of {total:,}, {rate:,.1f} images/s, {left} to go\n")
        sys.stderr.flush()

    return show
