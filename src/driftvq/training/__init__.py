"""Training on Lightning: configs, the training step, checkpoints, and the drift meter."""

from typing import TYPE_CHECKING

from driftvq.lazy import importer
from driftvq.training.config import TrainConfig

if TYPE_CHECKING:
    from driftvq.training.drift import DriftMeter, DriftReading
    from driftvq.training.module import TokenizerModule
    from driftvq.training.run import TrainResult, train

__all__ = ["DriftMeter", "DriftReading", "TokenizerModule", "TrainConfig", "TrainResult", "train"]

__getattr__ = importer(
    __name__,
    {
        "DriftMeter": "drift",
        "DriftReading": "drift",
        "TokenizerModule": "module",
        "TrainResult": "run",
        "train": "run",
    },
)
"""A config can be read without torch, the drift meter used without Lightning."""
