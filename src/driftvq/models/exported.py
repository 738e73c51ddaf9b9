"""Exported files, run and compared with the model they came from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driftvq.models.tracing import TRACED_BATCH, TRACED_GRID, evaluation_copy
from driftvq.models.vqvae import VQVAE

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
