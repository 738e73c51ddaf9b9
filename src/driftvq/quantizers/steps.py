"""What goes into a call of a quantizer, and what comes out of it.

Shape suffixes: n latents (all positions of the batch), d dimensions, q indices per position.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from driftvq.quantizers.codebooks.base import Lesson


class QuantizerOutput(NamedTuple):
    """What every quantizer returns: ``quantized, indices, loss = vq(x)``."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class LossTerms(NamedTuple):
    """The terms of a loss before they are weighted, each 0 where the loss has none.

    Attributes:
        commitment: draws the encoder to the codes.
        codebook: draws the codes to the latents.
        entropy: makes choices sure and lets all codes be used, where the method knows soft choices.
        orthogonality: spreads the directions of the codes.
    """

    commitment: Tensor
    codebook: Tensor
    entropy: Tensor
    orthogonality: Tensor


class Call(NamedTuple):
    """How latents ``(n, d)`` come to a method.

    Attributes:
        positions: their shape without channels, the batch first: ``(b, …)`` with product n.
        valid: boolean ``(n,)``, which latents count; None: all.
        trains: whether the loss may send the codes a gradient.
        learns: whether the call changes what training changes by itself; not if it is recomputed for its gradient.
        levels: how many levels of a residual to use; None: all.
        choices: codes to take instead of the nearest ones ``(n,)``; None: the nearest.
    """

    positions: torch.Size
    valid: Tensor | None = None
    trains: bool = False
    learns: bool = False
    levels: int | None = None
    choices: Tensor | None = None


class Selection(NamedTuple):
    """What a method makes of a batch of latents, before projection and layout.

    ``lesson`` is what the codes learn from it; None where others do the learning. Its winners differ from ``indices``
    where those are sampled. ``terms`` are those of the loss, unweighted, by their names in :class:`LossTerms`;
    ``parts`` is what the inner quantizers of a composite did.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    lesson: Lesson | None
    terms: dict[str, Tensor] | None = None
    parts: tuple["Step", ...] = ()


class Step(NamedTuple):
    """What a quantizer did with a batch.

    ``quantized (n, dim)`` and ``indices`` are projected back and masked; ``latents (n, codebook_dim)`` are as the
    method saw them, ``selection`` is what it chose.
    """

    quantized: Tensor
    indices: Tensor
    latents: Tensor
    selection: Selection
    call: Call


class Details(NamedTuple):
    """What a call returns, and everything behind it.

    Attributes:
        quantized, indices, loss: as in :class:`QuantizerOutput`.
        terms: of the loss, unweighted, and summed over levels or averaged over groups as the loss is.
        latents, codes: the projected latents and their codes before the output projection, channel last.
        parts: the details of each level or group of a composite, channel last; otherwise empty.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    terms: LossTerms
    latents: Tensor
    codes: Tensor
    parts: tuple["Details", ...]
