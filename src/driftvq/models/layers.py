"""The residual layers of the networks."""

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualLayer(nn.Module):
    """A 3×3 and a 1×1 convolution without bias, added to x: ``x + W_1 relu(W_3 x)``.

    Args:
        channels: of x and inside.
        relu_first: the usual order of residual networks, ``x + W_1 relu(W_3 relu(x))``.
    """

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

    def __init__(self, channels: int, groups: int = 32) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps=1e-6)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, channels, eps=1e-6)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return x + moved
