"""Networks by name."""

from collections.abc import Callable

from driftvq.models.network import Network as Network
from driftvq.models.paper import paper_network
from driftvq.models.small import small_network
from driftvq.models.taming import taming_f4_network, taming_network

NETWORKS: dict[str, Callable[[int], Network]] = {
    "small": small_network,
    "paper": paper_network,
    "taming": taming_network,
    "taming_f4": taming_f4_network,
}
"""Each makes an encoder and a decoder for latents of the given number of channels; a new one is one more entry."""
