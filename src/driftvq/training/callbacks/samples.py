"""Reconstructions of the same images, to see a model learn."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor

from driftvq.data.images import to_float, to_uint8, write_image
from driftvq.quantizers.arguments import positive_int
from driftvq.training.callbacks.tensorboard import add_image
from driftvq.training.callbacks.trainer import steps_done, whole_weights
from driftvq.training.probing import undisturbed

COLUMNS = 8


class SampleImages(Callback):
    """Writes originals over their reconstructions to ``samples/step-00000100.png`` of the run and to TensorBoard.

    Args:
        images: uint8 ``(b, 3, h, w)``.
        every: steps between pictures; the last step has one in any case.
        run: the run's folder; by default the trainer's ``default_root_dir``.
    """

    def __init__(self, images: Tensor, every: int, run: Path | None = None) -> None:
        self.images, self.every, self.run = images, positive_int("every", every), run
        self._step = -1

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        step = steps_done(trainer, pl_module)
        if step % self.every == 0:
            self._write(trainer, pl_module, step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, steps_done(trainer, pl_module))

    def _write(self, trainer: Trainer, pl_module: LightningModule, step: int) -> None:
        if step == self._step:
            return
        self._step = step
        model: Any = pl_module.model
        with whole_weights(trainer), undisturbed([model]):
            rebuilt = to_uint8(model.reconstruct(to_float(self.images).to(pl_module.device))).cpu()
        picture = pair_grid(self.images, rebuilt)
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir if self.run is None else self.run) / "samples"
            folder.mkdir(parents=True, exist_ok=True)
            write_image(folder / f"step-{step:08d}.png", picture)
        add_image(trainer, "reconstructions", picture, step)


def pair_grid(originals: Tensor, rebuilt: Tensor, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """One picture ``(h, w, 3)`` of uint8 images ``(b, 3, h, w)``: each row of originals over its reconstructions."""
    columns = min(columns, len(originals))
    short = -len(originals) % columns
    bands = []
    for start in range(0, len(originals), columns):
        for images in (originals, rebuilt):
            row = images[start : start + columns]
            missing = images.new_full((short if len(row) < columns else 0, *images.shape[1:]), 255)
            bands.append(torch.cat([*row, *missing], dim=2))
    picture: NDArray[np.uint8] = torch.cat(bands, dim=1).permute(1, 2, 0).contiguous().numpy()
    return picture
