"""Post-hoc quantization: a codebook for an autoencoder that was trained without one (the paper's open question)."""

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from driftvq.functional import kmeans
from driftvq.models.model_config import NO_QUANTIZER
from driftvq.models.vqvae import VQVAE
from driftvq.quantizers import VQ

LATENTS_PER_CODE = 64
"""How many latents k-means sees per code."""

LEAST_LATENTS = 2**16
"""How many it sees at least, when there are as many."""


def quantize_afterwards(
    model: VQVAE, batches: Iterable[Tensor], codebook_size: int, seed: int = 0, *, iterations: int = 50
) -> VQVAE:
    """Give a plain autoencoder a frozen codebook: the k-means of its latents.

    All batches are read once. Of their latents a uniform random sample of bounded size is kept, so memory does not grow
    with the number of images.

    Args:
        model: with quantizer ``"none"``; it is not changed.
        batches: of images in [-1, 1], ``b 3 h w``; they must end.
        codebook_size: number of codes.
        seed: of the sample and of k-means.
        iterations: of k-means, at most.

    Returns:
        A copy of the model with the quantizer ``"vq"``, frozen, in evaluation mode.
    """
    if model.config.quantizer != NO_QUANTIZER:
        raise ValueError(f"quantize_afterwards needs a model with quantizer 'none', got {model.config.quantizer!r}")
    config = replace(
        model.config, quantizer="vq", codebook_size=codebook_size, quantizer_options={"freeze_codebook": True}
    )
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
    """A uniform sample without replacement of at most ``most`` latents ``(n, d)``, in one pass and bounded memory.

    Every latent draws a random key; those with the smallest keys stay.
    """
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
