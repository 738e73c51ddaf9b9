"""The last steps, in which the encoder rests: the codebook goes to k-means, and the decoder learns alone."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from driftvq.data import ImageBatch
from driftvq.models import VQVAE
from driftvq.quantizers.settling import check_repeatable, freeze_but_output_
from driftvq.quantizers.settling import settle_ as settle_quantizer_

SETTLING_PASSES, LATENTS_PER_CODE = 5, 64
"""Passes of k-means over the training images when the encoder comes to rest, and latents of each for one code."""


@dataclass(frozen=True)
class Inputs:
    """Images as the model takes them, of batches that can be gone through several times."""

    prepare: Callable[[Tensor], Tensor]
    batches: Iterable[ImageBatch]

    def __iter__(self) -> Iterator[Tensor]:
        return (self.prepare(batch.images) for batch in self.batches)


def settle_(model: VQVAE, batches: Iterable[Tensor], passes: int = 10) -> str:
    """Let the encoder rest and bring the codebook to k-means of its latents; from then on the decoder alone learns.

    >>> settle_(model, images)  # doctest: +SKIP
    >>> optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)  # doctest: +SKIP

    Args:
        model: to settle; wrap it in ``DistributedDataParallel`` again afterwards.
        batches: images in [-1, 1], gone through once per pass; with several processes as many in each.
        passes: steps of Lloyd's algorithm.

    Returns:
        How it went, in a line.
    """
    check_repeatable(batches)
    model.rest_encoder_()
    if model.quantizer is None:
        return "the encoder rests"
    errors = settle_quantizer_(model.quantizer, Latents(model, batches), passes)
    if not errors:
        return f"the encoder rests; {type(model.quantizer).__name__} keeps its codebook"
    change = f"from {errors[0]:.4g} to {errors[-1]:.4g} squared"
    return f"the encoder rests; {len(errors)} passes of k-means brought the latents {change} from their codes"


def rest_(model: VQVAE) -> None:
    """Let the decoder alone learn, with the codebook as it is: what :func:`settle_` leaves, for a run that goes on."""
    model.rest_encoder_()
    if model.quantizer is not None:
        freeze_but_output_(model.quantizer)


class Latents:
    """The latents of images, computed anew whenever they are gone through."""

    def __init__(self, model: VQVAE, batches: Iterable[Tensor]) -> None:
        self.model, self.batches = model, batches

    def __iter__(self) -> Iterator[Tensor]:
        return (self.model.latents(images) for images in self.batches)


def settling_batches(model: VQVAE, size: int, images: int, most: int) -> int:
    """Batches for each pass of k-means: enough for every code, but never more than ``most``.

    Args:
        model: that settles.
        size: side of the images.
        images: of a batch, of all processes together.
        most: batches, such as the steps that are left.
    """
    height, width = model.grid_size((size, size))
    codes = 0 if model.quantizer is None else model.quantizer.codebook_size
    return max(1, min(-(-LATENTS_PER_CODE * codes // (images * height * width)), most))
