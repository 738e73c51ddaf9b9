import pytest
import torch
import torch.nn.functional as F

from driftvq.metrics.weights import MissingWeightsError, find_weights
from tests.conftest import missing


def need_weights(name):
    """Skip where the weights are not installed, but not where everything has to run."""
    try:
        find_weights(name)
    except MissingWeightsError as error:
        missing(str(error))


@pytest.fixture
def photos():
    """Smooth uint8 images, and the same ones with noise: ``photos(count, size)``."""

    def make(count, size, noise=12.0, seed=0):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, 3, 6, 6, generator=generator) * 255
        smooth = F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 255)
        noisy = smooth + noise * torch.randn(smooth.shape, generator=generator)
        return smooth.round().byte(), noisy.clamp(0, 255).round().byte()

    return make
