"""Training on Lightning: configs, the training step, checkpoints, and the drift meter."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from driftvq.training.config import TrainConfig

if TYPE_CHECKING:
    from driftvq.training.drift import DriftMeter, DriftReading
    from driftvq.training.module import TokenizerModule
    from driftvq.training.run import TrainResult, train

__all__ = ["DriftMeter", "DriftReading", "TokenizerModule", "TrainConfig", "TrainResult", "train"]

_MODULES = {
    "DriftMeter": "drift",
    "DriftReading": "drift",
    "TokenizerModule": "module",
    "TrainResult": "run",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a config can be read without torch, the drift meter used without Lightning."""
    if name in _MODULES:
        return getattr(import_module(f"driftvq.training.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'driftvq.training' has no attribute {name!r}")
