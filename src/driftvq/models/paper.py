"""The encoder and decoder of the paper's Tab. 1."""

from torch import nn

from driftvq.models.layers import ResidualLayer
from driftvq.models.network import Network


def mirrored_network(code_dim: int, width: int, residual_layers: int, as_printed: bool) -> Network:
    """Two stride-2 convolutions, residual layers and a projection; the decoder mirrors them.

    Args:
        code_dim: channels of the latents.
        width: channels inside; half as many at the first stride.
        residual_layers: their number, in the encoder and in the decoder.
        as_printed: a LeakyReLU after the encoder's projection, and residual layers that do not begin with a ReLU.
    """

    def residual() -> list[nn.Module]:
        return [ResidualLayer(width, relu_first=not as_printed) for _ in range(residual_layers)]

    encoder = nn.Sequential(
        nn.Conv2d(3, width // 2, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.LeakyReLU(),
        *residual(),
        nn.LeakyReLU(),
        nn.Conv2d(width, code_dim, 1),
        *([nn.LeakyReLU()] if as_printed else []),
    )
    decoder = nn.Sequential(
        nn.Conv2d(code_dim, width, 3, padding=1),
        nn.LeakyReLU(),
        *residual(),
        nn.LeakyReLU(),
        nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
        nn.LeakyReLU(),
        nn.ConvTranspose2d(width // 2, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )
    return Network(encoder, decoder, downscale=4)


def paper_network(code_dim: int) -> Network:
    """Tab. 1 as printed: width 256, six residual layers, and a LeakyReLU on the latents."""
    return mirrored_network(code_dim, width=256, residual_layers=6, as_printed=True)
