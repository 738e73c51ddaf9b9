"""A model's identity, so that tokens are decoded by the model that made them."""

import hashlib
import json

import torch
from torch import Tensor, nn

from driftvq.models.vqvae import VQVAE


def model_hash(model: VQVAE) -> str:
    """The sha256 of a model's config and of every tensor that ``encode`` or ``decode`` may depend on, as hex.

    Names, precisions, shapes and bits count; device, memory layout and train or eval mode do not. Left out are the
    quantizer's buffers that its parts declare as ``training_state``, so a forward pass in training mode that moves no
    weight and no code leaves the hash alone.
    """
    digest = hashlib.sha256(json.dumps(model.current_config.to_dict(), sort_keys=True).encode())
    ignored = training_state(model)
    for name, tensor in sorted(model.state_dict().items()):
        if name not in ignored:
            digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(_bits(tensor))
    return digest.hexdigest()


def training_state(model: nn.Module) -> set[str]:
    """Names, as in the state dict, of the tensors that say how training goes on and that evaluation does not see."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "training_state", ())
    }


def _bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()
