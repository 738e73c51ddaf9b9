"""Drift readings during training."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from driftvq.data.images import to_float
from driftvq.quantizers.arguments import positive_int
from driftvq.training.callbacks.tensorboard import add_histogram
from driftvq.training.callbacks.trainer import steps_done, whole_weights
from driftvq.training.drift import DriftMeter, DriftReading


class DriftCallback(Callback):
    """Reads a :class:`driftvq.training.drift.DriftMeter` before the first step and every so often.

    Readings go to all loggers as ``drift/…``, the use and the age of the codes to TensorBoard as histograms. All
    processes measure, since weights may be spread over them; the loggers write in the first.

    Args:
        probe: uint8 images ``(b, 3, h, w)``, the same during the whole run.
        every: steps between readings.
    """

    def __init__(self, probe: Tensor, every: int) -> None:
        self.probe, self.every = probe, positive_int("every", every)
        self.meter: DriftMeter | None = None
        self.reading: DriftReading | None = None
        """The latest reading."""
        self._step = -1
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model: Any = pl_module.model
        probe = to_float(self.probe).to(pl_module.device)
        self.meter = DriftMeter(model.latents, model.quantizer, probe, channel_first=True)
        self.meter.load_state_dict(self._state)
        if steps_done(trainer, pl_module) == 0:
            self._read(trainer, 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        step = steps_done(trainer, pl_module)
        if step % self.every == 0 and step != self._step:
            self._read(trainer, step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "meter": self._state if self.meter is None else self.meter.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._step, self._state = state_dict["step"], state_dict["meter"]

    def _read(self, trainer: Trainer, step: int) -> None:
        assert self.meter is not None
        self._step = step
        with whole_weights(trainer):
            self.reading = self.meter.measure()
        values = {f"drift/{name}": v for name, v in self.reading.to_dict().items() if math.isfinite(v)}
        for logger in trainer.loggers:
            logger.log_metrics(values, step)
        if self.meter.counts is not None and len(self.meter.counts) > 0:
            add_histogram(trainer, "codes/selected_by_probe", self.meter.counts, step)
        age = getattr(self.meter.quantizer, "code_age", None)
        if age is not None:
            add_histogram(trainer, "codes/age", age, step)
