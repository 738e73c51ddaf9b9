"""What is kept of a run: checkpoints to go on from, and the best model."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from driftvq.models import VQVAE, save_pretrained
from driftvq.training.averaging import put_back_
from driftvq.training.checkpoints import checkpoint_path, prune_checkpoints
from driftvq.training.config import MONITORS, TrainConfig
from driftvq.training.stopping import InterruptedTrainingError, StopSignals, any_process


class Keeper(Checkpoint):
    """After each step, in this order: validation, best model, early stop, checkpoint, and the end if somebody asked.

    Lightning runs it after all other callbacks. Where a validation follows a step, the checkpoint of the step is
    written after it, so that a resumed run neither repeats nor misses a validation.

    Args:
        run: the run's folder.
        config: of the run.
        signals: whether somebody asked to stop.
        say: where to tell.
    """

    def __init__(self, run: Path, config: TrainConfig, signals: StopSignals, say: Callable[[str], None]) -> None:
        self.run, self.config, self.signals, self.say = run, config, signals, say
        self.best: dict[str, float] = {}
        """Validation values of the best model, and its step."""
        self.latest: dict[str, float] = {}
        self.waited = 0
        self._own: dict[str, Tensor] | None = None

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.run / "checkpoints"

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        module: Any = pl_module
        if not module.at_step_end:
            return
        if module.steps_done >= module.steps:
            trainer.should_stop = True  # also makes Lightning validate after a last step that is not due otherwise
        if not module.validation_due:
            self._keep(trainer, module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        if module.average is not None:
            self._own = module.average.put_in_(module.model)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        values = {name: float(trainer.callback_metrics[name]) for name in trainer.callback_metrics if "val/" in name}
        self.latest = {"step": module.steps_done, **values}
        self._judge(trainer, module)
        if self._own is not None:
            put_back_(module.model, self._own)
            self._own = None
        if 0 < self.config.patience <= self.waited:
            trainer.should_stop = True
            if trainer.is_global_zero:
                self.say(f"early stop: {self.waited} validations without a better {self.config.monitor}")
        self._keep(trainer, module)

    def state_dict(self) -> dict[str, Any]:
        return {"best": dict(self.best), "latest": dict(self.latest), "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.latest = dict(state_dict["best"]), dict(state_dict["latest"])
        self.waited = state_dict["waited"]

    def _judge(self, trainer: Trainer, module: Any) -> None:
        """Save the model if it is the best so far."""
        name = f"val/{self.config.monitor}"
        if not is_better(self.latest.get(name), self.best.get(name), MONITORS[self.config.monitor]):
            self.waited += 1
            return
        self.best, self.waited = dict(self.latest), 0
        weights = trainer.strategy.lightning_module_state_dict()
        if trainer.is_global_zero:
            with torch.random.fork_rng(devices=[]):  # new weights are drawn, and replaced at once
                model = VQVAE(module.model.config)
            model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
            try:
                save_pretrained(model, self.run / "model", card=self._card())
            except Exception as error:  # safetensors has an error of its own for a full disk
                raise OSError(f"cannot write the best model to {self.run / 'model'}: {error}") from error

    def _card(self) -> dict[str, Any]:
        data = "embedded photographs" if self.config.data is None else Path(self.config.data).name
        values = {name.removeprefix("val/"): value for name, value in self.best.items() if name != "step"}
        training = {"step": int(self.best["step"]), "data": data, "image size": self.config.size}
        return {"training": training, "validation": values}

    def _keep(self, trainer: Trainer, module: Any) -> None:
        stop = any_process(self.signals.requested, module.device)
        path = checkpoint_path(self.checkpoints, module.steps_done)
        if stop or trainer.should_stop or module.steps_done % self.config.checkpoint_every == 0:
            trainer.save_checkpoint(path)
            if trainer.is_global_zero:
                prune_checkpoints(self.checkpoints)
        if stop and module.steps_done < module.steps:
            raise InterruptedTrainingError(module.steps_done, path)


def is_better(value: float | None, best: float | None, direction: str) -> bool:
    """Whether a value beats the best one so far; one that is not finite never does."""
    if value is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best if direction == "max" else value < best
