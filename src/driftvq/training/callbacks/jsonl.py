"""The log as a plain file of JSON lines."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from driftvq.training.callbacks.trainer import steps_done
from driftvq.training.records import METRICS_FILE, append_record, drop_records_after


class JsonlLogger(Logger, Callback):
    """Writes every log event to ``metrics.jsonl`` of a run: ``{"step": 100, "train/loss": 0.03, …}``.

    It is a logger and a callback: pass it to the trainer as both, then a resumed run forgets by itself what was logged
    after its checkpoint. Otherwise call :meth:`start_at`.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        super().__init__()
        self.path = Path(run) / METRICS_FILE

    @property
    def name(self) -> str:
        return "jsonl"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_record(self.path, 0 if step is None else int(step), metrics)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The configuration has a file of its own."""

    @rank_zero_only
    def start_at(self, step: int) -> None:
        """Drop what was logged after ``step``, and a last line that a crash cut short."""
        drop_records_after(self.path, step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start_at(steps_done(trainer, pl_module))
