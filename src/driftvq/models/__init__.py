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

__getattr__ = importer(
    __name__, afterwards="quantize_afterwards settle_", architecture="NETWORKS Network", hub="push_to_hub",
    pretrained="model_hash save_pretrained", vqvae="VQVAE VQVAEOutput",
)  # fmt: skip
"""A config can be read without loading torch."""
