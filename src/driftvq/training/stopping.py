"""Why a run stops before its last step, and how all processes get to know."""

import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from driftvq.quantizers.distributed import world_size

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStoppedError(RuntimeError):
    """The run ended before its last step."""


class InterruptedTrainingError(TrainingStoppedError):
    """Somebody asked the run to stop, and a checkpoint was saved."""

    def __init__(self, step: int, checkpoint: Path) -> None:
        super().__init__(f"stopped at step {step}; saved {checkpoint}")
        self.step, self.checkpoint = step, checkpoint


class NonFiniteError(TrainingStoppedError):
    """A loss, the latents or the weights became NaN or infinite."""


class StopSignals(Callback):
    """Turns the first Ctrl-C or SIGTERM into a request, :attr:`requested`; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def _note(self, number: int, frame: object) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process; all get the same answer."""
    if world_size() == 1:
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


def all_processes(value: Any) -> list[Any]:
    """The plain value of each process, in the order of the processes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def save_batch_names(run: Path, step: int, what: str, names: Sequence[str], first: bool) -> Path:
    """Write which images the processes were working on when ``what`` stopped being finite."""
    path = run / f"nan-step-{step}.json"
    batches = all_processes(list(names))
    if first:
        report = {"step": step, "not_finite": what, "images": [name for batch in batches for name in batch]}
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
