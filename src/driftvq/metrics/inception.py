"""Features of the Inception network that rFID and KID are defined by."""

import io
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.metrics.checks import check_rgb, check_value_range
from driftvq.metrics.inception_network import InceptionNetwork
from driftvq.metrics.weights import CARRIERS, read_weights

FEATURES = 2048
SIZE = 299
RESIZE = f"bilinear to {SIZE}×{SIZE}, antialiased, corners not aligned, not rounded"
"""The one resize; FID values of other resizes are not comparable."""
CHUNK = 16
"""Images that go through the network at once, whatever the size of the batch."""


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
    content = io.BytesIO(read_weights("inception", weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has a successor, this file has not
        return torch.jit.load(content, map_location="cpu").eval()


class Inception(nn.Module):
    """``b 3 h w`` images to ``b 2048`` features by the network of the original FID.

    Args:
        value_range: lowest and highest value of the images.
        weights: folder to look for the weights first, see :func:`driftvq.metrics.weights.find_weights`.
    """

    num_features = FEATURES
    extractor = f"inception-{CARRIERS['inception'].sha256[:16]}-bilinear-antialias"
    """Names network and resize: features of different extractors must not be mixed."""

    def __init__(self, value_range: tuple[float, float] = (0, 255), weights: Path | None = None) -> None:
        super().__init__()
        check_value_range(torch.empty(0), value_range)
        self.value_range = value_range
        self.network = InceptionNetwork(load_script(weights))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Features in float32; the images are resized and normalised here."""
        features = torch.empty(len(images), FEATURES, device=images.device)
        for start in range(0, len(images), CHUNK):
            part = slice(start, start + CHUNK)
            features[part] = self.network(inception_input(images[part], self.value_range))
        return features
