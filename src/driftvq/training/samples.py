"""Reconstructions of the same images, to see a model learn."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from driftvq.data.images import write_image

COLUMNS = 8


def write_sample(run: Path, step: int, picture: NDArray[np.uint8]) -> None:
    """Write ``samples/step-00000100.png`` of a run."""
    folder = run / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    write_image(folder / f"step-{step:08d}.png", picture)


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
