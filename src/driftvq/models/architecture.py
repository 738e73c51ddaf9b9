"""What a model is built of: networks by name, and the quantizer that a config describes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.models.model_config import NO_QUANTIZER, RESERVED, ModelConfig
from driftvq.names import check_name, shortened
from driftvq.quantizers import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.quantizer import argument_names


class Network(NamedTuple):
    """An encoder from images to latents, the decoder back, and how many pixels a side a latent stands for."""

    encoder: nn.Module
    decoder: nn.Module
    downscale: int


class ResidualLayer(nn.Module):
    """``x + W_1 relu(W_3 x)``, a 3×3 and a 1×1 convolution without bias; usually ``relu_first``, ``W_3 relu(x)``."""

    def __init__(self, channels: int, relu_first: bool = False) -> None:
        super().__init__()
        self.relu_first = relu_first
        self.spatial = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.pointwise(F.relu(self.spatial(F.relu(x) if self.relu_first else x)))
        return x + moved


class ResidualBlock(nn.Module):
    """The residual block of the Taming family: twice group norm, swish, 3×3 convolution; added to x."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps=1e-6)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, channels, eps=1e-6)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return x + moved


def mirrored_network(code_dim: int, width: int, residual_layers: int, as_printed: bool) -> Network:
    """Two stride-2 convolutions, residual layers and a projection; the decoder mirrors them."""

    def residual() -> list[nn.Module]:  # as printed, they do not begin with a ReLU, and one follows the projection
        return [ResidualLayer(width, relu_first=not as_printed) for _ in range(residual_layers)]

    encoder = nn.Sequential(
        nn.Conv2d(3, width // 2, 4, stride=2, padding=1), nn.LeakyReLU(),
        nn.Conv2d(width // 2, width, 4, stride=2, padding=1), nn.LeakyReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(),
        *residual(), nn.LeakyReLU(),
        nn.Conv2d(width, code_dim, 1), *([nn.LeakyReLU()] if as_printed else []),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Conv2d(code_dim, width, 3, padding=1), nn.LeakyReLU(),
        *residual(), nn.LeakyReLU(),
        nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1), nn.LeakyReLU(),
        nn.ConvTranspose2d(width // 2, 3, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    return Network(encoder, decoder, downscale=4)


LATENT_WIDTH = 3  # channels between the networks and the 1×1 convolutions around the quantizer, whatever the code_dim


def taming_network(code_dim: int, downscale: int, width: int = 128) -> Network:
    """Stages of one, two and four times the width, of as many groups of channels each, and back.

    Stride 8 has the encoder column as printed, and in the decoder one more transposed convolution before its last.
    Stride 4 has the decoder column as printed; the encoder's first convolution does not halve: k3, s1, p1.
    """

    def stage(layer: nn.Conv2d | nn.ConvTranspose2d) -> list[nn.Module]:  # and two residual blocks of its width
        blocks = [ResidualBlock(layer.out_channels, groups=width // 4) for _ in range(2)]
        return [layer, nn.LeakyReLU(), *blocks]

    if downscale == 8:
        first = nn.Conv2d(3, width, 4, stride=2, padding=1)
        extra = [nn.ConvTranspose2d(width, width, 4, stride=2, padding=1), nn.LeakyReLU()]
    else:
        first, extra = nn.Conv2d(3, width, 3, padding=1), []
    encoder = nn.Sequential(
        *stage(first), *stage(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)),
        *stage(nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1)),
        nn.Conv2d(4 * width, LATENT_WIDTH, 3, padding=1), nn.Conv2d(LATENT_WIDTH, code_dim, 1),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Conv2d(code_dim, LATENT_WIDTH, 1), *stage(nn.Conv2d(LATENT_WIDTH, 4 * width, 3, padding=1)),
        *stage(nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1)),
        *stage(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)),
        *extra, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip
    return Network(encoder, decoder, downscale)


NETWORKS: dict[str, Callable[[int], Network]] = {
    # Tab. 1 cut down, with latents of either sign; and as printed.
    "small": partial(mirrored_network, width=64, residual_layers=2, as_printed=False),
    "paper": partial(mirrored_network, width=256, residual_layers=6, as_printed=True),
    "taming": partial(taming_network, downscale=8),
    "taming_f4": partial(taming_network, downscale=4),
    "taming_small": partial(taming_network, downscale=4, width=32),
}
"""Each makes an encoder and a decoder for latents of the given number of channels; a new one is one more entry."""

MAX_PARTS = 1024  # quantizers in one: each is built by itself, so their number is time
LARGEST_OPTION = {"num_quantizers": MAX_PARTS, "groups": MAX_PARTS, "codebook_dim": 2**16, "width": 2**16}
"""Options that say how much is built; checked before anything is."""


def build_quantizer(config: ModelConfig) -> Quantizer | None:
    """The quantizer of a model for images, or None for a plain autoencoder."""
    if config.quantizer == NO_QUANTIZER:
        return None
    check_name("quantizer", config.quantizer, (*QUANTIZERS, NO_QUANTIZER))
    known = option_names(config.quantizer, config.quantizer_options)
    for name in config.quantizer_options:
        check_name(f"key in quantizer_options for {config.quantizer!r}", name, known)
    parts = 1
    for name, largest in LARGEST_OPTION.items():
        value = config.quantizer_options.get(name)
        if isinstance(value, int | float) and value > largest:
            raise ValueError(f"quantizer_options[{name!r}] must be at most {largest:,}, got {shortened(value)}")
        if largest == MAX_PARTS and isinstance(value, int):
            parts *= value
    if parts > MAX_PARTS:
        raise ValueError(f"num_quantizers × groups must be at most {MAX_PARTS:,}, got {parts:,}")
    sizes: dict[str, Any] = {"dim": config.code_dim, "codebook_size": config.codebook_size}
    try:
        return make_quantizer(config.quantizer, **sizes, channel_first=True, **config.quantizer_options)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        options = f"codebook_size {config.codebook_size}, quantizer_options {shortened(config.quantizer_options)}"
        what = f"quantizer {config.quantizer!r} cannot be made with code_dim {config.code_dim}, {options}"
        raise ValueError(f"{what}: {reason}") from error


def option_names(name: str, options: Mapping[str, Any]) -> list[str]:
    """What ``quantizer_options`` may hold for a quantizer; for a composite one, also what its inner quantizer takes."""
    if "quantizer" in options:
        check_name("quantizer_options['quantizer']", str(options["quantizer"]), QUANTIZERS)
    return [option for option in argument_names(QUANTIZERS[name], options.get("quantizer")) if option not in RESERVED]
