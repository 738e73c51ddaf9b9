"""What TensorBoard shows beside the scalars."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from numpy.typing import NDArray
from torch import Tensor


def add_histogram(trainer: Trainer, name: str, values: Tensor, step: int) -> None:
    """Show how values are distributed, in every TensorBoard logger of the first process."""
    for writer in _writers(trainer):
        writer.add_histogram(name, values.cpu(), step)


def add_image(trainer: Trainer, name: str, image: NDArray[np.uint8], step: int) -> None:
    """Show an image ``(h, w, 3)``, likewise."""
    for writer in _writers(trainer):
        writer.add_image(name, image, step, dataformats="HWC")


def _writers(trainer: Trainer) -> Iterator[Any]:
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                yield logger.experiment
