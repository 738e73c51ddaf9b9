"""Training a tokenizer: configs, the loop, checkpoints."""

from typing import TYPE_CHECKING

from driftvq.names import importer
from driftvq.training.config import TrainConfig

if TYPE_CHECKING:
    from driftvq.training.run import TrainResult, train

__all__ = ["TrainConfig", "TrainResult", "train"]

__getattr__ = importer(__name__, run="TrainResult train")  # a config can be read without torch
