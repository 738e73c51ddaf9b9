"""The FID Inception network, rebuilt from its TorchScript file so that it runs faster on CPUs.

The same layers with the same weights; batch normalisation is folded into the convolutions and images stay in
channels-last order, which the TorchScript form undoes after every block. The features agree to about 2e-6 of the
largest one, which is what another order of summation does.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-3
"""Of the batch normalisations."""


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


class InceptionNetwork(nn.Sequential):
    """``b 3 299 299`` in [-1, 1) to ``b 2048``.

    Args:
        script: the TorchScript network.
    """

    def __init__(self, script: Any) -> None:
        parts = [_convert(name, part) for name, part in script.net.layers.named_children()]
        super().__init__(*parts, nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        for part in self:
            x = part(x)
        return x


def _convert(name: str, part: Any) -> nn.Module:
    children = dict(part.named_children())
    kind = part.original_name
    if kind == "Conv2dLayer":
        return FoldedConv(part)
    if kind == "Sequential":
        return nn.Sequential(*(_convert(child, module) for child, module in children.items()))
    if kind in ("MaxPool2d", "AvgPool2d"):
        return _pool(name, kind)
    if kind == "InceptionE":
        return _forked(children)
    return Branches([_convert(child, module) for child, module in children.items()])


def _pool(name: str, kind: str) -> nn.Module:
    """Pools between blocks (``pool0``, ``pool1``) and across them halve the size; those in a tower keep it."""
    if name == "pool2":
        return nn.AvgPool2d(8)
    if kind == "AvgPool2d":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    return nn.MaxPool2d(3, 1, 1) if name == "tower_2_pool" else nn.MaxPool2d(3, 2)


def _forked(children: Mapping[str, Any]) -> nn.Module:
    """The two last blocks, whose towers end in a fork."""
    layers = {name: _convert(name, module) for name, module in children.items()}
    return Branches(
        [
            layers["conv"],
            nn.Sequential(layers["tower_conv"], Branches([layers["tower_mixed_conv"], layers["tower_mixed_conv_1"]])),
            nn.Sequential(
                layers["tower_1_conv"],
                layers["tower_1_conv_1"],
                Branches([layers["tower_1_mixed_conv"], layers["tower_1_mixed_conv_1"]]),
            ),
            nn.Sequential(layers["tower_2_pool"], layers["tower_2_conv"]),
        ]
    )
