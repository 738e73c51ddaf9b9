"""Progress of a training run on stderr."""

import math
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from driftvq.training.callbacks.trainer import steps_done

SHOWN = {
    "train/loss": "loss {:.4f}",
    "train/psnr": "PSNR {:.2f} dB",
    "train/usage": "usage {:.0%}",
    "val/psnr": "val PSNR {:.2f} dB",
}
WIDE = 110
"""Columns of a terminal that has room for all of them; a narrower one leaves out validation."""
SECONDS_BETWEEN_LINES = 30.0


class LiveProgress(Callback):
    """A bar with steps per second, time left, loss, PSNR and usage; plain lines now and then if stderr is a file.

    Values are read after log steps only, since each reading waits for the device. The trainer's own bar should be off
    (``enable_progress_bar=False``).
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._first_step, self._started, self._last_line = 0, 0.0, -math.inf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        total = trainer.estimated_stepping_batches
        self._total = int(total) if 0 <= total < math.inf else None
        self._first_step, self._started = steps_done(trainer, pl_module), time.monotonic()
        console = Console(file=sys.stderr)
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
                console=console,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("", total=self._total, completed=self._first_step, rate="", values="")
            self._bar.start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        step = steps_done(trainer, pl_module)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined] # set by one of its connectors
        if trainer.is_global_zero and step > self._first_step and step % every == 0:
            self._show(trainer, step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=steps_done(trainer, pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._show(trainer, steps_done(trainer, pl_module), last=True)
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()

    def _show(self, trainer: Trainer, step: int, last: bool = False) -> None:
        now = time.monotonic()
        rate = (step - self._first_step) / max(now - self._started, 1e-9)
        if self._bar is not None:
            values = shown_values(trainer, validation=self._bar.console.width >= WIDE)
            self._bar.update(self._task, completed=step, rate=f"{rate:.1f}/s", values=values)
        elif last or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            sys.stderr.write(progress_line(step, self._total, rate, shown_values(trainer)) + "\n")
            sys.stderr.flush()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def shown_values(trainer: Trainer, validation: bool = True) -> str:
    """The latest loss, PSNR and usage, as far as they were logged."""
    metrics = {**trainer.callback_metrics, **trainer.logged_metrics}
    names = [name for name in SHOWN if name in metrics and (validation or not name.startswith("val/"))]
    return " · ".join(SHOWN[name].format(float(metrics[name])) for name in names)


def progress_line(step: int, total: int | None, rate: float, values: str) -> str:
    """One line for a log file: ``step 500/2000 · 12.3 steps/s · 2:02 left · loss …``."""
    parts = [f"step {step}" if total is None else f"step {step}/{total}", f"{rate:.1f} steps/s"]
    if total is not None and rate > 0:
        minutes, seconds = divmod(round((total - step) / rate), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left")
    return " · ".join([*parts, values] if values else parts)
