"""A model's identity, so that tokens are decoded by the model that made them."""

import hashlib
import json

import torch
from torch import Tensor

from driftvq.models.vqvae import VQVAE

TRAINING_STATE = frozenset(
    {
        "bandwidth",
        "cluster_size",
        "cluster_sum",
        "code_age",
        "evidence",
        "finished",
        "gain",
        "mass",
        "movement",
        "pending",
        "relocated",
        "rest",
        "scale",
        "seen",
        "step",
    }
)
"""Buffers of quantizers that say how training goes on and change nothing in evaluation."""


def model_hash(model: VQVAE) -> str:
    """The sha256 of a model's config and of every tensor that ``encode`` or ``decode`` may depend on, as hex.

    Names, precisions, shapes and bits count; device, memory layout and train or eval mode do not. Left out are the
    quantizer's buffers in :data:`TRAINING_STATE`, so a forward pass in training mode that moves no weight and no code
    leaves the hash alone.
    """
    digest = hashlib.sha256(json.dumps(model.current_config.to_dict(), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not is_training_state(name):
            digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(_bits(tensor))
    return digest.hexdigest()


def is_training_state(name: str) -> bool:
    """Whether a tensor of a state dict is one that evaluation does not see."""
    return name.startswith("quantizer.") and name.rpartition(".")[2] in TRAINING_STATE


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()
