"""The Taming-style networks of Suppl. 12, in the two forms that its table allows.

The table's encoder halves the image three times and its decoder doubles it twice, so one column has to give.
"""

from torch import nn

from driftvq.models.layers import ResidualBlock
from driftvq.models.network import Network

LATENT_WIDTH = 3
"""Channels between the networks and the 1×1 convolutions around the quantizer, whatever the dimension of a code."""


def taming_network(code_dim: int) -> Network:
    """The encoder column as printed (stride 8); the decoder has one more transposed convolution before its last."""
    first = nn.Conv2d(3, 128, 4, stride=2, padding=1)
    extra = (nn.ConvTranspose2d(128, 128, 4, stride=2, padding=1), nn.LeakyReLU())
    return Network(_encoder(code_dim, first), _decoder(code_dim, *extra), downscale=8)


def taming_f4_network(code_dim: int) -> Network:
    """The decoder column as printed (stride 4); the encoder's first convolution does not halve: k3, s1, p1."""
    return Network(_encoder(code_dim, nn.Conv2d(3, 128, 3, padding=1)), _decoder(code_dim), downscale=4)


def _encoder(code_dim: int, first: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(
        first,
        nn.LeakyReLU(),
        *_two_blocks(128),
        nn.Conv2d(128, 256, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        *_two_blocks(256),
        nn.Conv2d(256, 512, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        *_two_blocks(512),
        nn.Conv2d(512, LATENT_WIDTH, 3, padding=1),
        nn.Conv2d(LATENT_WIDTH, code_dim, 1),
    )


def _decoder(code_dim: int, *extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(code_dim, LATENT_WIDTH, 1),
        nn.Conv2d(LATENT_WIDTH, 512, 3, padding=1),
        nn.LeakyReLU(),
        *_two_blocks(512),
        nn.ConvTranspose2d(512, 256, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        *_two_blocks(256),
        nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        *_two_blocks(128),
        *extra,
        nn.Conv2d(128, 3, 3, padding=1),
        nn.Tanh(),
    )


def _two_blocks(channels: int) -> tuple[ResidualBlock, ResidualBlock]:
    return ResidualBlock(channels), ResidualBlock(channels)
