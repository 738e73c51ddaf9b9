"""How many pixels a model may be given at once, so that no image takes the machine's memory.

``bytes per pixel = READ_BYTES + NETWORK_BYTES + LATENT_COPIES · (1 + q) · 4 · code_dim / downscale²``

with q indices per position (0 without that dimension). What lies above it does not grow with the image.
"""

from collections.abc import Collection

import torch

from driftvq.data.images import READ_BYTES, USABLE
from driftvq.machine import available_memory
from driftvq.models.vqvae import VQVAE

NETWORK_BYTES = {"small": 160, "paper": 560, "taming": 2250, "taming_f4": 4700}
"""The most that a pixel takes inside each network, encoder or decoder, in float32; a test measures it."""

LATENT_COPIES = 5
"""Of the latents, while a quantizer works on them; once more for each index of a position."""

WORKER_BYTES = READ_BYTES + 16
"""One image that a worker reads, and two that wait."""

METRIC_BYTES, LPIPS_VGG_BYTES = 160, 1900
"""The most that a metric takes for a pixel of a pair; they are measured one after the other."""


def pixel_bytes(model: VQVAE) -> int:
    """Memory that a pixel takes on its way into the model, through it and out."""
    per_position = 0 if model.quantizer is None else model.quantizer.indices_per_position
    latents = 4 * model.config.code_dim / model.downscale**2
    network = NETWORK_BYTES.get(model.config.network, max(NETWORK_BYTES.values()))
    return READ_BYTES + network + int(LATENT_COPIES * (1 + per_position) * latents)


def pixel_limit(model: VQVAE, workers: int = 0, more: int = 0) -> int:
    """Pixels at once for which the free memory of the model's device is enough.

    Args:
        model: on its device.
        workers: processes that read ahead; each may have images as large on its way.
        more: bytes that a pixel takes elsewhere.
    """
    device = next(model.parameters()).device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    return max(1, int(USABLE * free) // (pixel_bytes(model) + WORKER_BYTES * workers + more))


def metric_bytes(metrics: Collection[str]) -> int:
    """Memory that a pixel takes while metrics are measured."""
    return LPIPS_VGG_BYTES if "lpips_vgg" in metrics else METRIC_BYTES
