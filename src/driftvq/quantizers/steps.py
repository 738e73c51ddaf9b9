"""What a call of a quantizer passes on: how latents come, what was chosen, what is returned."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from driftvq.quantizers.codebooks.base import Lesson


class QuantizerOutput(NamedTuple):
    """What every quantizer returns: ``quantized, indices, loss = vq(x)``."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class LossTerms(NamedTuple):
    """The terms of a loss before they are weighted, each 0 where the loss has none.

    The commitment draws the encoder to the codes, the codebook's term the codes to the latents; the entropy makes soft
    choices sure and lets all codes be used, the orthogonality spreads the directions of the codes.
    """

    commitment: Tensor
    codebook: Tensor
    entropy: Tensor
    orthogonality: Tensor


class Call(NamedTuple):
    """How latents ``(n, d)`` come to a method."""

    positions: torch.Size  # their shape without channels, the batch first: ``(b, …)`` with product n
    valid: Tensor | None  # which latents count, boolean ``(n,)``; None: all
    trains: bool  # whether the loss may send the codes a gradient
    learns: bool  # whether it changes what training changes by itself; not if it is recomputed for its gradient
    levels: int | None  # how many levels of a residual to use; None: all
    choices: Tensor | None = None  # codes to take instead of the nearest ones ``(n,)``
    first: bool = True  # of the step; not for a codebook that a level before has used in it


class Selection(NamedTuple):
    """What a method makes of a batch of latents, before projection and layout."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    lesson: Lesson | None  # what the codes learn, by winners that are never sampled; None: others do the learning
    terms: dict[str, Tensor] | None = None  # of the loss, unweighted, by their names in LossTerms
    parts: tuple["Step", ...] = ()  # what the inner quantizers of a composite did
    absent: tuple["Step", ...] = ()  # and, with no latents, those that this process leaves out and others may use


class Step(NamedTuple):
    """What a quantizer did with a batch."""

    quantized: Tensor  # projected back and masked, ``(n, dim)``
    indices: Tensor
    latents: Tensor  # as the method saw them, ``(n, codebook_dim)``
    selection: Selection
    call: Call


class Details(NamedTuple):
    """What a call returns, and everything behind it.

    The terms of the loss are unweighted, and summed over levels or averaged over groups as the loss is. Channel last
    are projected latents and codes before the output projection, and ``parts``: of each level or group of a composite.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    terms: LossTerms
    latents: Tensor
    codes: Tensor
    parts: tuple["Details", ...]


def mask_of_lens(x: Tensor, mask: Tensor | None, lens: Tensor, channel_first: bool) -> Tensor:
    """The mask that lengths of sequences stand for."""
    if mask is not None:
        raise ValueError("mask and lens say the same thing: give one of them, got both")
    positions = x.shape[2:] if channel_first else x.shape[1:-1]
    if len(positions) != 1:
        raise ValueError(f"lens is for sequences, one position after the other; got latents {tuple(x.shape)}")
    if not isinstance(lens, Tensor) or lens.is_meta:
        got = "one on 'meta'" if isinstance(lens, Tensor) else type(lens).__name__
        raise ValueError(f"lens must be a tensor of integers that has values, got {got}")
    if lens.is_floating_point() or lens.dtype == torch.bool or tuple(lens.shape) != (x.shape[0],):
        raise ValueError(f"lens must be integers of shape {(x.shape[0],)}, got {lens.dtype} of {tuple(lens.shape)}")
    if not torch.compiler.is_compiling() and lens.numel() and not 0 <= lens.min() <= lens.max() <= positions[0]:
        raise ValueError(f"lens must lie between 0 and the {positions[0]} positions, got {lens.tolist()}")
    return torch.arange(positions[0], device=x.device) < lens.to(x.device)[:, None]


def project(layer: nn.Module, x_nd: Tensor) -> Tensor:
    """Apply a projection in its own precision; without one, raise half precision to float32."""
    if not isinstance(layer, nn.Identity):
        dtype = next((p.dtype for p in layer.parameters() if p.is_floating_point()), x_nd.dtype)
        x_nd = layer(x_nd.to(dtype))
    return x_nd.to(torch.promote_types(x_nd.dtype, torch.float32))
