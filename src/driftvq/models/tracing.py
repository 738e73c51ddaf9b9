"""A model as two graphs that other runtimes can run: images to indices, and indices to images."""

import copy
import warnings
from types import MethodType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from driftvq.models.vqvae import VQVAE
from driftvq.quantizers import FSQ, Quantizer
from driftvq.quantizers.codebooks.transformed import TransformedCodes

TRACED_BATCH, TRACED_GRID = 2, (5, 6)
"""The example that is traced. No two numbers are equal, so that none is taken for another."""


class Traced(NamedTuple):
    """Both graphs; batch, height and width are free, images in multiples of the stride."""

    encoder: ExportedProgram
    decoder: ExportedProgram


class Encoder(nn.Module):
    """Images to indices, without the checks of :meth:`VQVAE.encode`, which depend on values."""

    def __init__(self, encoder: nn.Module, quantizer: Quantizer) -> None:
        super().__init__()
        self.encoder, self.quantizer = encoder, quantizer

    def forward(self, images: Tensor) -> Tensor:
        indices: Tensor = self.quantizer(self.encoder(images)).indices
        return indices


class Decoder(nn.Module):
    """Indices to images."""

    def __init__(self, decoder: nn.Module, quantizer: Quantizer) -> None:
        super().__init__()
        self.decoder, self.quantizer = decoder, quantizer

    def forward(self, indices: Tensor) -> Tensor:
        images: Tensor = self.decoder(self.quantizer.indices_to_codes(indices))
        return images


def trace(model: VQVAE) -> Traced:
    """Both graphs of a model, in float32 on the CPU, by ``torch.export``."""
    parts = evaluation_copy(model)
    assert parts.quantizer is not None
    batch, height, width = Dim("batch", max=2**20), Dim("height", max=2**14), Dim("width", max=2**14)
    images = torch.zeros(TRACED_BATCH, 3, *(side * model.downscale for side in TRACED_GRID))
    indices = parts.encode(images)
    pixels = {0: batch, 2: model.downscale * height, 3: model.downscale * width}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own internals
        return Traced(
            torch.export.export(
                Encoder(parts.encoder, parts.quantizer), (images,), dynamic_shapes={"images": pixels}, strict=True
            ),
            torch.export.export(
                Decoder(parts.decoder, parts.quantizer),
                (indices,),
                dynamic_shapes={"indices": {0: batch, 1: height, 2: width}},
                strict=True,
            ),
        )


def evaluation_copy(model: VQVAE) -> VQVAE:
    """A frozen copy in float32 on the CPU, in which what depends on no input is computed once and for all."""
    if model.quantizer is None:
        raise ValueError("a plain autoencoder (quantizer 'none') has no indices to export")
    fixed = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    for module in list(fixed.modules()):
        if isinstance(module, TransformedCodes):
            _fix_(module, "transformed")
            module.transform = nn.Identity()
        elif isinstance(module, FSQ):
            _fix_(module, "_basis")  # a cumulative product, which ONNX does not know
    return fixed


def _fix_(module: nn.Module, method: str) -> None:
    """Let a method without arguments return, from now on, what it returns now."""
    module.register_buffer(f"fixed{method}", getattr(module, method)().detach().clone(), persistent=False)
    setattr(module, method, MethodType(lambda self: getattr(self, f"fixed{method}"), module))
