"""LPIPS: the perceptual distance of Zhang et al. (2018), version 0.1, with AlexNet or VGG16."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.metrics.similarity import check_pair, check_rgb, check_size, check_value_range
from driftvq.metrics.weights import read_arrays
from driftvq.names import check_name

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)  # what the networks were trained with, for images in [-1, 1]
TINY = 1e-20  # below every real square norm; keeps the gradient finite where all features are zero


class Layer(NamedTuple):
    """A convolution with its ReLU, the max-pooling (stride 2) before it, and whether LPIPS looks at the output."""

    stride: int
    padding: int
    pool: int
    compared: bool


class Backbone(NamedTuple):
    """A network: its name in the file of weights, its layers, and the smallest image that reaches the last one."""

    scope: str
    layers: tuple[Layer, ...]
    least_size: int


_ALEX = (Layer(*sizes, compared=True) for sizes in ((4, 2, 0), (1, 2, 3), (1, 1, 3), (1, 1, 0), (1, 1, 0)))
_VGG = (
    Layer(1, 1, 2 if block and not place else 0, place == size - 1)
    for block, size in enumerate((2, 2, 3, 3, 3))
    for place in range(size)
)
BACKBONES = {"alex": Backbone("AlexNet_0", tuple(_ALEX), 31), "vgg": Backbone("VGG16_0", tuple(_VGG), 16)}


class LPIPS(nn.Module):
    """Perceptual distance of two images, one number per pair; differentiable in both, never trained.

    ``Σ_l mean_hw Σ_c w_lc (f_lc(x) - f_lc(y))²``, ``f_l`` being the features of layer l, of length 1 at each position.

    The authors recommend ``net="alex"`` for measuring and ``"vgg"`` as a loss. ``value_range`` is the lowest and
    highest value of the images, ``weights`` a folder where :func:`find_weights` looks first. The weights are frozen
    parameters and stay out of ``state_dict``: a checkpoint of a model trained with this loss needs none of them.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, net: str = "alex", value_range: tuple[float, float] = (-1.0, 1.0), weights: Path | None = None
    ) -> None:
        super().__init__()
        self.net = check_name("LPIPS network", net, BACKBONES)
        self.backbone = BACKBONES[net]
        self.value_range = value_range
        check_value_range(torch.empty(0), value_range)
        self.convs, self.biases, self.heads = _parameters(read_arrays(net, weights), self.backbone)
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances ``(b,)`` of images ``b 3 h w``; 0 for equal images."""
        check_pair(x, y)
        check_rgb(x)
        check_size(x, self.backbone.least_size, f"LPIPS with {self.net}")
        check_value_range(x, self.value_range)
        pairs = zip(self.features(x), self.features(y), self.heads, strict=True)
        distances = [((_unit(fx) - _unit(fy)).square() * head).sum(1).mean((1, 2)) for fx, fy, head in pairs]
        return torch.stack(distances).sum(0)

    def features(self, x: Tensor) -> list[Tensor]:
        """What LPIPS compares: the features of five layers, not yet normalised."""
        low, high = self.value_range
        x = (x.to(self.scale.dtype) - low) * (2 / (high - low)) - 1
        x = (x - self.shift) / self.scale
        compared = []
        for layer, kernel, bias in zip(self.backbone.layers, self.convs, self.biases, strict=True):
            if layer.pool:
                x = F.max_pool2d(x, layer.pool, 2)
            x = F.relu(F.conv2d(x, kernel, bias, layer.stride, layer.padding))
            if layer.compared:
                compared.append(x)
        return compared

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing: the weights belong to the metric, not to a model that is trained with it."""
        destination = kwargs.get("destination")
        return {} if destination is None else destination


class _Frozen(nn.ParameterList):
    """Parameters that are never trained and that no checkpoint is asked for."""

    def __init__(self, values: list[Tensor]) -> None:
        super().__init__([nn.Parameter(value, requires_grad=False) for value in values])

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """A checkpoint has none of them."""


def _parameters(arrays: Mapping[str, Any], backbone: Backbone) -> tuple[_Frozen, _Frozen, _Frozen]:
    """Kernels, biases and the weights of the compared channels; the file has kernels as h w in out."""
    convs = [arrays[backbone.scope][f"Conv_{number}"] for number in range(len(backbone.layers))]
    heads = [arrays[f"NetLinLayer_{number}"]["Conv_0"]["kernel"] for number in range(5)]
    return (
        # Channels-last kernels make the whole network run so, which is faster on CPUs.
        _Frozen([_kernel(conv["kernel"]).contiguous(memory_format=torch.channels_last) for conv in convs]),
        _Frozen([torch.from_numpy(conv["bias"]).clone() for conv in convs]),
        _Frozen([_kernel(head).contiguous() for head in heads]),
    )


def _kernel(array: Any) -> Tensor:
    return torch.from_numpy(array).permute(3, 2, 0, 1)


def _unit(features: Tensor) -> Tensor:
    """Length 1 at every position, in single precision at least; zeros stay zeros."""
    wide = features if features.dtype == torch.float64 else features.float()
    return wide / (wide.square().sum(1, keepdim=True) + TINY).sqrt()
