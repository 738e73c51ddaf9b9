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
    "NETWORKS", "VQVAE", "ModelConfig", "Network", "VQVAEOutput", "model_hash", "push_to_hub", "quantize_afterwards",
    "save_pretrained", "settle_",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("NETWORKS", "Network"), "architecture"),
    **dict.fromkeys(("VQVAE", "VQVAEOutput"), "vqvae"),
    **dict.fromkeys(("model_hash", "save_pretrained"), "pretrained"),
    **dict.fromkeys(("quantize_afterwards", "settle_"), "afterwards"),
    "push_to_hub": "hub",
}
__getattr__ = importer(__name__, _MODULES)
"""A config can be read without loading torch."""
