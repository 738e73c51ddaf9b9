"""What a network is to a model."""

from typing import NamedTuple

from torch import nn


class Network(NamedTuple):
    """An encoder from images to latents, the decoder back, and how many pixels a side a latent stands for."""

    encoder: nn.Module
    decoder: nn.Module
    downscale: int
