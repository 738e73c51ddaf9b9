"""Progress of a training run on stderr."""

import math
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SHOWN = {
    "train/loss": "loss {:.4f}",
    "train/psnr": "PSNR {:.2f} dB",
    "train/usage": "usage {:.0%}",
    "val/psnr": "val PSNR {:.2f} dB",
}
WIDE = 110
"""Columns of a terminal that has room for all of them; a narrower one leaves out validation."""
SECONDS_BETWEEN_LINES = 30.0


class LiveProgress:
    """A bar with steps per second, time left, loss, PSNR and usage; plain lines now and then if stderr is a file.

    Args:
        step: steps taken before.
        total: steps of the run.
        visible: whether to show anything; only the first process does.
    """

    def __init__(self, step: int, total: int, visible: bool = True) -> None:
        self._visible = visible
        self._first, self._total, self._started = step, total, time.monotonic()
        self._last_line, self._last_step = -math.inf, -1
        self._bar: Progress | None = None
        self._task = TaskID(0)
        console = Console(file=sys.stderr)
        if visible and console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
                console=console,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("", total=total, completed=step, rate="", values="")
            self._bar.start()

    def show(self, step: int, values: Mapping[str, float], last: bool = False) -> None:
        """Show the latest values: in the bar, or as a line if the last one is long ago."""
        if not (self._visible and (last or any(name in values for name in SHOWN))):
            return
        now = time.monotonic()
        rate = (step - self._first) / max(now - self._started, 1e-9)
        if self._bar is not None:
            text = shown_values(values, validation=self._bar.console.width >= WIDE)
            self._bar.update(self._task, completed=step, rate=f"{rate:.1f}/s", values=text)
        elif step != self._last_step and (last or now - self._last_line >= SECONDS_BETWEEN_LINES):
            self._last_line, self._last_step = now, step
            sys.stderr.write(progress_line(step, self._total, rate, shown_values(values)) + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def shown_values(values: Mapping[str, float], validation: bool = True) -> str:
    """Loss, PSNR and usage, as far as they were logged."""
    names = [name for name in SHOWN if name in values and (validation or not name.startswith("val/"))]
    return " · ".join(SHOWN[name].format(values[name]) for name in names)


def progress_line(step: int, total: int, rate: float, values: str) -> str:
    """One line for a log file: ``step 500/2000 · 12.3 steps/s · 2:02 left · loss …``."""
    parts = [f"step {step}/{total}", f"{rate:.1f} steps/s"]
    if rate > 0:
        minutes, seconds = divmod(round((total - step) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left")
    return " · ".join([*parts, values] if values else parts)
