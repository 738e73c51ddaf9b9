"""What the commands share: the model on its device, and batches as large as the device likes them."""

from typing import NamedTuple

import torch

from driftvq.machine import pick_device
from driftvq.models.vqvae import VQVAE


class Loaded(NamedTuple):
    """A model, where it is, and how many images it takes at once."""

    model: VQVAE
    device: torch.device
    batch_size: int


def load_model(path: str, device: str = "auto", batch_size: int | None = None) -> Loaded:
    """Load a model for encoding or decoding.

    Args:
        path: see ``VQVAE.from_pretrained``.
        device: "auto", or a torch device such as "cuda:1".
        batch_size: None takes 16 on a GPU. On a CPU it takes 1: then what an image becomes cannot depend on its
            neighbours, at some cost in speed for small images.
    """
    chosen = pick_device(device)
    model = VQVAE.from_pretrained(path, map_location=chosen).eval()
    return Loaded(model, chosen, batch_size or (1 if chosen.type == "cpu" else 16))
