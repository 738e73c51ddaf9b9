"""What encoding and decoding share.

The last bits of a convolution depend on how many images it works on at once. A token folder therefore records its
batches, and decoding repeats them: on the same machine it computes what ``VQVAE.reconstruct`` computes for each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from driftvq.models.pretrained import model_hash
from driftvq.models.vqvae import VQVAE
from driftvq.tokens.format import TokenModel
from driftvq.tokens.progress import Progress


def token_model(model: VQVAE) -> TokenModel:
    """What a token folder says of a model; an error for one without tokens."""
    if model.quantizer is None:
        raise ValueError("this model is a plain autoencoder (quantizer 'none'): it has no tokens")
    quantizer = model.quantizer
    return TokenModel(model_hash(model), quantizer.codebook_size, model.downscale, quantizer.indices_per_position)


def too_small(images: Tensor, model: VQVAE) -> str | None:
    """Why the model cannot take images of this size, or None."""
    height, width, least = images.shape[2], images.shape[3], model.downscale
    return f"{height}×{width} pixels, the model needs {least}×{least}" if min(height, width) < least else None


@contextmanager
def repeatable() -> Iterator[None]:
    """Let the GPU compute the same for the same batch; a CPU does anyway."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def counter(progress: Progress | None, done: int = 0) -> Callable[[int], None]:
    """What adds up the images of the batches for a progress display."""

    def count(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done)

    count(0)
    return count
