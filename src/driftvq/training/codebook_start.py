"""The k-means start of the codebook, before the first step."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from driftvq.drift_meter.probing import parts_of, pending_starts
from driftvq.models import VQVAE
from driftvq.quantizers import Quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.distributed import world_size


@torch.no_grad()
def start_codebook_(model: VQVAE, batches: Iterable[Tensor], most_batches: int) -> str:
    """Feed latents of training images to the k-means start of a quantizer that has one, until it is done.

    The network does not change meanwhile, so the first optimizer step already sees the codebook in place. All processes
    take part and end with the same codes.

    Args:
        model: whose quantizer waits for latents.
        batches: images in [-1, 1].
        most_batches: batches to use at most; a larger codebook goes on with its start during the first steps.

    Returns:
        How it went, in a line.
    """
    quantizer, rows = model.quantizer, 0
    assert quantizer is not None
    with learning_held(quantizer):
        for used, images in enumerate(batches, start=1):
            latents = model.encoder(images.to(model.dtype))
            quantizer(latents)
            rows += latents.numel() // latents.shape[1]
            if used == most_batches or not pending_starts(quantizer):
                break
    _reset_ages_(quantizer)
    rows *= world_size()
    if pending_starts(quantizer):
        return f"k-means start: {rows:,} latents seen before the first step, it goes on during the first steps"
    return f"k-means start: {quantizer.codebook_size:,} codes placed among {rows:,} latents"


@contextmanager
def learning_held(quantizer: Quantizer) -> Iterator[None]:
    """Codebooks keep exactly what their start gives them: from then on they are frozen, until the end of the block."""
    parts = [part for part in parts_of(quantizer) if isinstance(part, CodebookQuantizer) and not part.freeze_codebook]

    def hold(part: CodebookQuantizer) -> None:
        if part.start.done:
            part.freeze_codebook = True

    hooks = [part.start.register_forward_hook(lambda *_, part=part: hold(part)) for part in parts]
    try:
        yield
    finally:
        for hook, part in zip(hooks, parts, strict=True):
            hook.remove()
            part.freeze_codebook = False


def _reset_ages_(quantizer: Quantizer) -> None:
    """Training starts now: no code is old, no step was taken."""
    for part in quantizer.modules():
        if isinstance(part, Quantizer):
            part.step.zero_()
            part.code_age.zero_()
