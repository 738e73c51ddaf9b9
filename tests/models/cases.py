"""Small models with every registered quantizer."""

import torch

from driftvq import QUANTIZERS
from driftvq.models import VQVAE, ModelConfig

QUANTIZER_CASES = list(QUANTIZERS)


def make_model(quantizer="ns_vq", *, steps=2, **values):
    """A model that a few training steps have brought away from its start."""
    torch.manual_seed(0)
    model = VQVAE(ModelConfig(**{"codebook_size": 64, "code_dim": 12, **values}, quantizer=quantizer))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        images = make_images(4, 16, 16, seed=step)
        output = model(images)
        ((output.images - images).square().mean() + output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def make_images(batch=2, height=18, width=23, seed=100):
    """Smooth random images in [-1, 1]; by default of a size that no stride divides."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 4, 4, generator=generator) * 2 - 1
    fine = torch.rand(batch, 3, height, width, generator=generator) * 2 - 1
    return 0.7 * torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") + 0.3 * fine
