"""A model as two graphs that other runtimes can run, images to indices and back; exported files, run and compared."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from driftvq.models.vqvae import VQVAE
from driftvq.quantizers import FSQ, Quantizer
from driftvq.quantizers.transformed_vq import TransformedCodes

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


IMAGE_TOLERANCE = 1e-4
"""Largest difference of a pixel in [-1, 1]: an eightieth of a grey level."""

TIE_NOISE = 1e-4
"""An index may differ only where noise of this share of the latents' size changes torch's own choice."""

TIE_DRAWS = 16

CHECKS = ((1, (3, 4)), (TRACED_BATCH + 1, (TRACED_GRID[0] + 2, TRACED_GRID[1] + 5)))
"""Batches and grids of the check, other than what was traced."""


class Runner(NamedTuple):
    """The two exported graphs as functions."""

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def onnx_runner(encoder: Path, decoder: Path) -> Runner:
    """Run two ONNX files in onnxruntime, on the CPU."""
    import onnxruntime

    def load(path: Path) -> Callable[[Tensor], Tensor]:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    return Runner(load(encoder), load(decoder))


def torch_runner(encoder: Path, decoder: Path) -> Runner:
    """Run two files of ``torch.export``."""

    def load(path: Path) -> Callable[[Tensor], Tensor]:
        module = torch.export.load(path).module()
        return lambda x: module(x)

    return Runner(load(encoder), load(decoder))


def check_exported(model: VQVAE, runner: Runner) -> dict[str, Any]:
    """Compare the exported graphs with the model; a difference is an error.

    Indices must be equal. Where two codes are equally near up to rounding, runtimes that add in another order may
    choose differently: a place is a tie if noise of :data:`TIE_NOISE` makes torch itself change its choice, or if both
    choices mean the same code up to as much.

    Returns:
        The shapes compared, the largest difference of a pixel, and the number of ties and of positions.
    """
    reference = evaluation_copy(model)
    generator = torch.Generator().manual_seed(0)
    shapes, worst, ties, positions = [], 0.0, 0, 0
    for batch, grid in CHECKS:
        size = tuple(side * model.downscale for side in grid)
        images = torch.rand(batch, 3, *size, generator=generator) * 2 - 1
        indices, got = reference.encode(images), runner.encode(images)
        if got.shape != indices.shape or got.dtype != indices.dtype:
            raise ValueError(f"exported indices are {got.dtype} {tuple(got.shape)}, not as in torch: {indices.dtype}")
        ties += _count_ties(reference, images, indices, got)
        positions += indices.numel()
        difference = (runner.decode(indices) - reference.decode(indices)).abs().max().item()
        if not difference <= IMAGE_TOLERANCE:
            raise ValueError(
                f"exported images differ from torch by {difference:.2g}, at most {IMAGE_TOLERANCE} allowed"
            )
        worst = max(worst, difference)
        shapes.append([batch, 3, *size])
    return {"shapes": shapes, "largest_pixel_difference": worst, "indices": positions, "ties": ties}


def _count_ties(reference: VQVAE, images: Tensor, indices: Tensor, got: Tensor) -> int:
    """How many indices differ, all of them ties."""
    differs = got != indices
    if not differs.any():
        return 0
    unsure = _same_codes(reference, images, indices, got) | _unsure(reference, images, indices)
    wrong = int((differs & ~unsure).sum())
    if wrong:
        raise ValueError(f"exported indices differ from torch at {wrong} of {indices.numel()} places that are no ties")
    return int(differs.sum())


def _unsure(reference: VQVAE, images: Tensor, indices: Tensor) -> Tensor:
    """Where a little noise changes torch's own choice."""
    assert reference.quantizer is not None
    latents = reference.latents(images)
    generator, unsure = torch.Generator().manual_seed(1), torch.zeros_like(indices, dtype=torch.bool)
    for _ in range(TIE_DRAWS):
        noise = torch.randn(latents.shape, generator=generator) * _size(latents) * TIE_NOISE
        unsure |= reference.quantizer(latents + noise).indices != indices
    return unsure


def _same_codes(reference: VQVAE, images: Tensor, indices: Tensor, got: Tensor) -> Tensor:
    """Where both choices mean codes that no latent tells apart."""
    assert reference.quantizer is not None
    apart = reference.quantizer.indices_to_codes(indices) - reference.quantizer.indices_to_codes(got)
    same = apart.abs().amax(dim=1) <= _size(reference.latents(images)) * TIE_NOISE
    return same if indices.ndim == same.ndim else same[..., None].expand_as(indices)


def _size(latents: Tensor) -> Tensor:
    return latents.square().mean().sqrt()
