"""A network for CPUs."""

from driftvq.models.network import Network
from driftvq.models.paper import mirrored_network


def small_network(code_dim: int) -> Network:
    """Tab. 1 cut down: width 64, two residual layers that begin with a ReLU, latents of either sign."""
    return mirrored_network(code_dim, width=64, residual_layers=2, as_printed=False)
