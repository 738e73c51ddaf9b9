"""Codebooks for an encoder that does not move any more: made afterwards, or settled before the last steps."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from driftvq.functional import kmeans
from driftvq.models.model_config import NO_QUANTIZER
from driftvq.models.vqvae import VQVAE
from driftvq.quantizers import VQ, settling

LATENTS_PER_CODE = 64  # how many latents k-means sees for each code, in each pass
LEAST_LATENTS = 2**16  # how many it sees at least, when there are as many


def quantize_afterwards(
    model: VQVAE, batches: Iterable[Tensor], codebook_size: int, seed: int = 0, *, iterations: int = 50
) -> VQVAE:
    """Give a plain autoencoder a frozen codebook: the k-means of its latents, after at most so many iterations.

    The model, with quantizer ``"none"``, is copied with a frozen quantizer ``"vq"``. All batches of images in [-1, 1]
    are read once; a uniform random sample of their latents is kept, so memory does not grow with the images.
    """
    if model.config.quantizer != NO_QUANTIZER:
        raise ValueError(f"quantize_afterwards needs a model with quantizer 'none', got {model.config.quantizer!r}")
    options = {"freeze_codebook": True}
    config = replace(model.config, quantizer="vq", codebook_size=codebook_size, quantizer_options=options)
    generator = torch.Generator().manual_seed(seed)
    latents_nd = sample_latents(model, batches, max(LATENTS_PER_CODE * codebook_size, LEAST_LATENTS), generator)
    if len(latents_nd) < codebook_size:
        raise ValueError(f"codebook_size {codebook_size} needs as many latents, the images have {len(latents_nd)}")
    codebook_kd = kmeans(latents_nd, codebook_size, iterations, generator=generator).codebook
    with torch.random.fork_rng(devices=[]):  # the random weights are overwritten: leave the caller's numbers alone
        quantized = VQVAE(config)
    quantized.encoder, quantized.decoder = copy.deepcopy(model.encoder), copy.deepcopy(model.decoder)
    assert isinstance(quantized.quantizer, VQ)
    quantized.quantizer.set_codebook_(codebook_kd)
    quantized.quantizer.to(latents_nd.device)
    return quantized.eval()


def sample_latents(model: VQVAE, batches: Iterable[Tensor], most: int, generator: torch.Generator) -> Tensor:
    """A uniform sample, without replacement, of at most ``most`` latents ``(n, d)``: of the smallest random keys."""
    device = next(model.parameters()).device
    kept_nd = torch.zeros(0, model.config.code_dim, device=device)
    keys_n = torch.zeros(0)
    for images in batches:
        latents = model.latents(images.to(device)).float()
        kept_nd = torch.cat([kept_nd, latents.movedim(1, -1).reshape(-1, model.config.code_dim)])
        keys_n = torch.cat([keys_n, torch.rand(len(kept_nd) - len(keys_n), generator=generator)])
        if len(keys_n) > most:
            keys_n, rows = keys_n.topk(most, largest=False)
            kept_nd = kept_nd[rows.to(device)]
    return kept_nd


SETTLING_PASSES = 5  # of k-means over the training images when the encoder comes to rest


@dataclass(frozen=True)
class Repeated:
    """Batches that are made anew whenever they are gone through."""

    make: Callable[[], Iterator[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return self.make()


def settle_(model: VQVAE, batches: Iterable[Tensor], passes: int = 10) -> str:
    """Let the encoder rest and bring the codebook to k-means of its latents; from then on the decoder alone learns.

    >>> settle_(model, images)  # doctest: +SKIP
    >>> optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)  # doctest: +SKIP

    The batches, of images in [-1, 1], are gone through once per pass of Lloyd's algorithm; with several processes as
    many in each, and the model wants to be wrapped in ``DistributedDataParallel`` again. Returns how it went.
    """
    settling.check_repeatable(batches)
    model.rest_encoder_()
    if model.quantizer is None:
        return "the encoder rests"
    errors = settling.settle_(model.quantizer, Repeated(lambda: map(model.latents, batches)), passes)
    if not errors:
        return f"the encoder rests; {type(model.quantizer).__name__} keeps its codebook"
    change = f"from {errors[0]:.4g} to {errors[-1]:.4g} squared"
    return f"the encoder rests; {len(errors)} passes of k-means brought the latents {change} from their codes"


def rest_(model: VQVAE) -> None:
    """Let the decoder alone learn, with the codebook as it is: what :func:`settle_` leaves, for a run that goes on."""
    model.rest_encoder_()
    if model.quantizer is not None:
        settling.freeze_but_output_(model.quantizer)


def settling_batches(model: VQVAE, size: int, images: int, most: int) -> int:
    """Batches of so many images of side ``size`` for a pass of k-means: enough for every code, at most ``most``."""
    height, width = model.grid_size((size, size))
    codes = 0 if model.quantizer is None else model.quantizer.codebook_size
    return max(1, min(-(-LATENTS_PER_CODE * codes // (images * height * width)), most))
