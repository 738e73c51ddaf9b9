"""Features of the Inception network that rFID and KID are defined by."""

import io
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.metrics.similarity import check_rgb, check_value_range
from driftvq.metrics.weights import CARRIERS, read_weights

EPSILON = 1e-3  # of the batch normalisations


class FoldedConv(nn.Module):
    """Convolution, batch normalisation (in the kernel and bias) and ReLU."""

    kernel: Tensor
    bias: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        scale = (layer.var.double() + EPSILON).rsqrt()
        kernel = layer.weight.double() * scale.view(-1, 1, 1, 1)
        self.register_buffer("kernel", kernel.float().contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", (layer.beta.double() - layer.mean.double() * scale).float())
        self.stride, self.padding = layer.stride, layer.padding

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(F.conv2d(x, self.kernel, self.bias, self.stride, self.padding))


class Branches(nn.ModuleList):
    """Branches that see the same input, one after the other in the channels of the output."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


def _convert(name: str, part: Any) -> nn.Module:
    children = dict(part.named_children())
    kind = part.original_name
    if kind == "Conv2dLayer":
        return FoldedConv(part)
    if kind == "Sequential":
        return nn.Sequential(*(_convert(child, module) for child, module in children.items()))
    if kind == "AvgPool2d":
        return nn.AvgPool2d(8) if name == "pool2" else nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    if kind == "MaxPool2d":  # between blocks and across them they halve the size; those in a tower keep it
        return nn.MaxPool2d(3, 1, 1) if name == "tower_2_pool" else nn.MaxPool2d(3, 2)
    layers = {child: _convert(child, module) for child, module in children.items()}
    if kind != "InceptionE":
        return Branches(layers.values())
    # The two last blocks, whose towers end in a fork.
    tower = (layers["tower_conv"], Branches([layers["tower_mixed_conv"], layers["tower_mixed_conv_1"]]))
    fork_1 = Branches([layers["tower_1_mixed_conv"], layers["tower_1_mixed_conv_1"]])
    tower_1 = (layers["tower_1_conv"], layers["tower_1_conv_1"], fork_1)
    tower_2 = (layers["tower_2_pool"], layers["tower_2_conv"])
    return Branches([layers["conv"], nn.Sequential(*tower), nn.Sequential(*tower_1), nn.Sequential(*tower_2)])


FEATURES = 2048
SIZE = 299
RESIZE = f"bilinear to {SIZE}×{SIZE}, antialiased, corners not aligned, not rounded"
"""The one resize; FID values of other resizes are not comparable."""
CHUNK = 16  # images that go through the network at once, whatever the size of the batch


def inception_input(images: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Images as the network wants them: resized to 299×299 by :data:`RESIZE`, 0 … 255 mapped to -1 … 127/128."""
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"images must be b 3 h w, uint8 or float, got {images.dtype} {tuple(images.shape)}")
    check_rgb(images)
    check_value_range(images, value_range)
    low, high = value_range
    levels = (images.float() - low) * (255 / (high - low))
    if levels.shape[-2:] != (SIZE, SIZE):
        levels = F.interpolate(levels, (SIZE, SIZE), mode="bilinear", align_corners=False, antialias=True)
    return (levels - 128) / 128


def load_script(weights: Path | None = None) -> Any:
    """The network as its TorchScript file has it, which is loaded only after its hash was checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has a successor, this file has not
        return torch.jit.load(io.BytesIO(read_weights("inception", weights)), map_location="cpu").eval()


class Inception(nn.Module):
    """``b 3 h w`` images of a value range to ``b 2048`` features by the network of the original FID."""

    num_features = FEATURES
    extractor = f"inception-{CARRIERS['inception'].sha256[:16]}-bilinear-antialias"
    """Names network and resize: features of different extractors must not be mixed."""

    def __init__(self, value_range: tuple[float, float] = (0, 255), weights: Path | None = None) -> None:
        super().__init__()
        check_value_range(torch.empty(0), value_range)
        self.value_range = value_range
        parts = load_script(weights).net.layers.named_children()
        self.network = nn.Sequential(*(_convert(name, part) for name, part in parts), nn.Flatten())

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Features in float32; the images are resized and normalised here."""
        features = torch.empty(len(images), FEATURES, device=images.device)
        for start in range(0, len(images), CHUNK):
            part = slice(start, start + CHUNK)
            x = inception_input(images[part], self.value_range).contiguous(memory_format=torch.channels_last)
            features[part] = self.network(x)
        return features
