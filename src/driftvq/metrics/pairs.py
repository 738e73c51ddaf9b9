"""Originals and their reconstructions by a model, as the evaluation takes them."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from driftvq.data.images import to_float, to_uint8

if TYPE_CHECKING:
    from driftvq.data.loader import ImageBatch
    from driftvq.models import VQVAE

Skipped = Callable[[str, str], None]


def model_pairs(
    model: "VQVAE",
    batches: "Iterable[ImageBatch]",
    device: str | torch.device = "cpu",
    skipped: Skipped | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Batches of originals, reconstructions (both uint8) and indices; None for a plain autoencoder.

    Args:
        model: on the device already.
        batches: of uint8 images.
        device: where the model is.
        skipped: told the name of each unreadable image and what is wrong with it.
    """
    for batch in batches:
        for name, reason in batch.skipped:
            if skipped is not None:
                skipped(name, reason)
        if not len(batch.images):
            continue
        height, width = batch.images.shape[2:]
        if min(height, width) < model.downscale:
            if skipped is not None:
                for name in batch.names:
                    skipped(name, f"{height}×{width} pixels, the model needs {model.downscale}×{model.downscale}")
            continue
        originals = batch.images.to(device)
        images = to_float(originals)
        if model.quantizer is None:
            yield originals, to_uint8(model.reconstruct(images)), None
            continue
        indices = model.encode(images)
        size = (images.shape[-2], images.shape[-1])
        yield originals, to_uint8(model.decode(indices, size)), indices
