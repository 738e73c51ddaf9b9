"""What the tests of the tokens share."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from driftvq.data.images import BadImageError
from driftvq.models import VQVAE, ModelConfig
from driftvq.tokens import TokenModel

MODEL = TokenModel("ab" * 32, codebook_size=1000, downscale=4)


def make_model(seed=0, **config):
    """A small real model whose codes spread over the latents, so that different images get different tokens."""
    torch.manual_seed(seed)
    model = VQVAE(ModelConfig(**{"codebook_size": 64, "code_dim": 8, "quantizer": "ema_vq", **config}))
    if model.quantizer is not None:
        model.train()
        model(noise(4, 64, 64, seed=9))  # the first batch in training places the codes
    return model.eval()


def noise(count, height, width, seed=0):
    """Smooth random images in [-1, 1]."""
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=True)


def pixels(height, width, seed=0):
    """One smooth random image, uint8 ``(h, w, 3)``."""
    return ((noise(1, height, width, seed)[0].permute(1, 2, 0) + 1) * 127.5).round().to(torch.uint8).numpy()


def save_photos(folder: Path, sizes: dict[str, tuple[int, int]]) -> Path:
    """Image files by name and (height, width)."""
    for seed, (name, (height, width)) in enumerate(sizes.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(height, width, seed)).save(path)
    return folder


def load_png(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.array(image)


class Source:
    """Images made on demand: any number of them, of given sizes, some unreadable."""

    def __init__(self, sizes, bad=(), stop=None):
        self.problems = []
        self.sizes, self.bad, self.stop = sizes, set(bad), stop

    def __len__(self):
        return len(self.sizes)

    def name(self, index):
        return f"folder/image-{index:05}.jpg"

    def read(self, index, min_side=None):
        if index == self.stop:
            raise KeyboardInterrupt
        if index in self.bad:
            raise BadImageError("broken\non purpose")
        return pixels(*self.sizes[index], seed=index)
