"""The best model of a run, and how long none was better."""

import math
from pathlib import Path
from typing import Any

from driftvq.models import VQVAE, save_pretrained
from driftvq.training.config import MONITORS, TrainConfig


class BestModel:
    """Which validation was the best by ``config.monitor``; its model lies in the folder ``model`` of the run.

    Args:
        run: the run's folder.
        config: of the run.

    Attributes:
        best: validation values of the best model, and its step.
        latest: those of the latest validation.
        waited: validations since the best one.
    """

    def __init__(self, run: Path, config: TrainConfig) -> None:
        self.folder, self.config = run / "model", config
        self.best: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.waited = 0

    def judge(self, step: int, values: dict[str, float]) -> bool:
        """Note a validation; whether it is the best so far."""
        self.latest = {"step": step, **values}
        name = f"val/{self.config.monitor}"
        if not is_better(values.get(name), self.best.get(name), MONITORS[self.config.monitor]):
            self.waited += 1
            return False
        self.best, self.waited = dict(self.latest), 0
        return True

    @property
    def patience_is_over(self) -> bool:
        """Whether it is time for an early stop."""
        return 0 < self.config.patience <= self.waited

    def save(self, model: VQVAE) -> None:
        """Write the model that was just found to be the best."""
        data = "embedded photographs" if self.config.data is None else Path(self.config.data).name
        values = {name.removeprefix("val/"): value for name, value in self.best.items() if name != "step"}
        training = {"step": int(self.best["step"]), "data": data, "image size": self.config.size}
        try:
            save_pretrained(model, self.folder, card={"training": training, "validation": values})
        except Exception as error:  # safetensors has an error of its own for a full disk
            raise OSError(f"cannot write the best model to {self.folder}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """To go on from."""
        return {"best": dict(self.best), "latest": dict(self.latest), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.best, self.latest, self.waited = dict(state["best"]), dict(state["latest"]), state["waited"]


def is_better(value: float | None, best: float | None, direction: str) -> bool:
    """Whether a value beats the best one so far; one that is not finite never does."""
    if value is None or not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best if direction == "max" else value < best
