"""The 3×3 convolution of the networks, by whichever algorithm is fastest where it runs."""

import torch
from torch import Tensor, nn

from driftvq.functional import winograd_conv3x3

WORTHWHILE_CHANNELS = 96
"""With fewer channels, Winograd's transforms cost what they save."""


class Conv3x3(nn.Conv2d):
    """``nn.Conv2d(in_channels, out_channels, 3, padding=1)``, by Winograd's algorithm on CPUs in float32.

    There it trains about twice as fast and differs by rounding only; weights, state dict and everything elsewhere
    (GPUs, half precision, compiled and exported graphs) are those of ``nn.Conv2d``.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self._worthwhile(x):
            return super().forward(x)
        y = winograd_conv3x3(x, self.weight)
        return y if self.bias is None else y + self.bias[:, None, None]

    def _worthwhile(self, x: Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dtype == self.weight.dtype == torch.float32
            and min(self.in_channels, self.out_channels) >= WORTHWHILE_CHANNELS
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
        )
