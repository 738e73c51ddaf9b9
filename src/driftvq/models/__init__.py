"""Encoder and decoder pairs, and the VQ-VAE that joins them with any quantizer."""

from typing import TYPE_CHECKING

from driftvq.models.model_config import ModelConfig
from driftvq.names import importer

if TYPE_CHECKING:
    from driftvq.models.afterwards import quantize_afterwards, settle_
    from driftvq.models.architecture import NETWORKS, Network
    from driftvq.models.hub import push_to_hub
    from driftvq.models.pretrained import model_hash, save_pretrained
    from driftvq.models.vqvae import VQVAE, VQVAEOutput

__all__ = [
    "NETWORKS",
    "VQVAE",
    "ModelConfig",
    "Network",
    "VQVAEOutput",
    "model_hash",
    "push_to_hub",
    "quantize_afterwards",
    "save_pretrained",
    "settle_",
]

__getattr__ = importer(
    __name__,
    {
        "NETWORKS": "architecture",
        "Network": "architecture",
        "VQVAE": "vqvae",
        "VQVAEOutput": "vqvae",
        "model_hash": "pretrained",
        "push_to_hub": "hub",
        "quantize_afterwards": "afterwards",
        "save_pretrained": "pretrained",
        "settle_": "afterwards",
    },
)
"""A config can be read without loading torch."""
