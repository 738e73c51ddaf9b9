"""Images and what a model makes of them, side by side or alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from driftvq.data.images import SUFFIXES, Pixels, read_image, to_float, to_uint8
from driftvq.data.loader import eval_batches
from driftvq.data.sources import ImageSource
from driftvq.metrics.similarity import psnr
from driftvq.models.vqvae import VQVAE
from driftvq.tokens.coding import repeatable, too_small
from driftvq.tokens.pixel_limit import pixel_limit

GAP = 4
"""White pixels between an original and its reconstruction."""


class Reconstruction(NamedTuple):
    """An image as the model saw it, what came back, and their PSNR in dB on uint8 values."""

    name: str
    original: Pixels
    image: Pixels
    psnr: float


def reconstruct_images(
    model: VQVAE, source: ImageSource, *, size: int | None = None, batch_size: int = 1, max_pixels: int | None = None
) -> Iterator[Reconstruction | tuple[str, str]]:
    """Reconstruct the images of a source; one that cannot be read comes as name and reason.

    Args:
        model: on its device.
        source: see :func:`driftvq.data.open_source`.
        size: side of the centre square to fit images to; None keeps their own sizes.
        batch_size: images of equal size per call of the model.
        max_pixels: see :func:`driftvq.tokens.encode_source`.
    """
    max_pixels = max_pixels or pixel_limit(model)
    device = next(model.parameters()).device
    with repeatable():
        for images, names, skipped in eval_batches(source, size=size, batch_size=batch_size, max_pixels=max_pixels):
            yield from skipped
            reason = too_small(images, model)
            if reason is not None:
                yield from ((name, reason) for name in names)
                continue
            results = to_uint8(model.reconstruct(to_float(images.to(device)))).cpu()
            ratios = psnr(images, results, data_range=255).tolist()
            for name, original, result, ratio in zip(names, images, results, ratios, strict=True):
                yield Reconstruction(name, _hwc(original), _hwc(result), ratio)


class FileList:
    """Image files as the user named them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.problems: list[tuple[str, str]] = []
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, index: int) -> str:
        """The path."""
        return str(self._paths[index])

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """Decode one image; see :func:`driftvq.data.images.read_image`."""
        return read_image(self._paths[index], min_side)


def check_images(images: Sequence[Path]) -> None:
    """Every named image must be a file."""
    for path in images:
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name its images, or use `driftvq encode` and `driftvq decode`")
        if not path.exists():
            raise ValueError(f"no such image: {path}")


def output_paths(images: Sequence[Path], out: Path | None) -> list[Path]:
    """Where reconstructions go; an error if a file is there already or two images would share one.

    Args:
        images: the originals; ``photo.jpg`` becomes ``photo-reconstructed.png``.
        out: a folder, or for a single image a ``.png`` file; None is the current folder.
    """
    if out is not None and out.suffix.lower() == ".png" and not out.is_dir():
        if len(images) > 1:
            raise ValueError(f"{len(images)} images need a folder as output, got the file {out}")
        paths = [out]
    else:
        paths = [(out or Path()) / f"{_stem(image)}-reconstructed.png" for image in images]
    for number, path in enumerate(paths):
        if path.exists():
            raise ValueError(f"{path} exists and is not overwritten; move it, or choose another output with -o")
        if path in paths[:number]:
            other = images[paths.index(path)]
            raise ValueError(f"{other} and {images[number]} would both become {path}; reconstruct them one by one")
    return paths


def side_by_side(left: Pixels, right: Pixels) -> Pixels:
    """Two images of one height with a white gap between them."""
    gap = np.full((left.shape[0], GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([left, gap, right], axis=1)


def _stem(path: Path) -> str:
    return path.stem if path.suffix.lower() in SUFFIXES else path.name


def _hwc(image: Tensor) -> Pixels:
    pixels: Pixels = image.permute(1, 2, 0).numpy()
    return pixels
