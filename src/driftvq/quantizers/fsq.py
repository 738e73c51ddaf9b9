"""Finite scalar quantization (Mentzer et al., 2023)."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from driftvq.functional import straight_through
from driftvq.names import in_range, positive_int
from driftvq.quantizers.quantizer import Quantizer
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection

BOUND_MARGIN = 1e-3
"""How far the bound reaches past the outermost levels, so that they can be reached at all."""


@register("fsq")
class FSQ(Quantizer):
    """Each of a few dimensions is bounded and rounded to a fixed number of levels; the codebook is their product.

    ``q_j = round(h_j tanh(a z_j + s_j) - o_j) / ⌊L_j/2⌋`` with ``h_j ≈ (L_j-1)/2``, ``o_j`` ½ for even ``L_j`` else 0;

    symmetric:  ``q_j = 2 round(½ (L_j - 1)(tanh(a z_j) + 1)) / (L_j - 1) - 1``

    There is nothing to train but the projections, and the loss is 0. As level l of a :class:`ResidualVQ` the grid is
    the symmetric one, ``(L_j - 1)^-l`` times as large, so that it divides a step of the grid before it; there latents
    are cut off at its ends and not bent by tanh, which would leave every level the same error.

    Args:
        dim: channels of the latents.
        codebook_size: number of codes, the product of the levels; levels of 8 and less are chosen for it.
        levels: the levels themselves, e.g. ``(8, 5, 5, 5)``; ``codebook_size`` may then be left out.
        slope: a; 0.8 makes it iFSQ, whose bound is ``2σ(1.6 z) - 1 = tanh(0.8 z)``: latents that are normally
            distributed then use all levels about equally.
        symmetric: codes from -1 to 1 in equal steps, for even numbers of levels too.
        channel_first: see :class:`driftvq.quantizers.quantizer.Quantizer`.
    """

    fixed_grid: ClassVar[bool] = True
    levels: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int | None = None,
        *,
        levels: Sequence[int] | None = None,
        slope: float = 1.0,
        symmetric: bool = False,
        channel_first: bool = False,
    ) -> None:
        levels = _checked_levels(codebook_size, levels)
        super().__init__(dim, math.prod(levels), len(levels), channel_first)
        self.slope = in_range("slope", slope, 1e-6, float("inf"))
        self.symmetric = symmetric
        self.register_buffer("levels", torch.tensor(levels))

    @property
    def codebook(self) -> Tensor:
        return self._lookup(torch.arange(self.codebook_size, device=self.levels.device))

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        bounded_nd = self._bounded(z_nd)
        digits_nd = bounded_nd.detach().round()
        indices_n = (digits_nd.to(torch.int64) * self._basis()).sum(dim=1)
        smooth_nd = z_nd if self.level is not None else self._codes(bounded_nd)
        quantized_nd = straight_through(smooth_nd, self._codes(digits_nd))
        return Selection(quantized_nd, indices_n, z_nd.new_zeros(()), self._lesson(z_nd, indices_n, call.valid))

    def _bounded(self, z_nd: Tensor) -> Tensor:
        """Where on the grid latents lie, from 0 to L - 1."""
        steps_d = (self.levels - 1).to(z_nd.dtype)
        if self.level is not None:
            return ((z_nd * steps_d**self.level).clamp(-1, 1) + 1) * (steps_d / 2)
        if self.symmetric:
            return (torch.tanh(self.slope * z_nd) + 1) * (steps_d / 2)
        half_d = steps_d * (1 + BOUND_MARGIN) / 2
        offset_d = torch.where(self.levels % 2 == 0, 0.5, 0.0).to(z_nd.dtype)
        return torch.tanh(self.slope * z_nd + torch.atanh(offset_d / half_d)) * half_d - offset_d + self.levels // 2

    def _codes(self, digits_nd: Tensor) -> Tensor:
        """The codes at these places of the grid."""
        steps_d = (self.levels - 1).to(digits_nd.dtype)
        if self.level is not None:
            return (2 * digits_nd / steps_d - 1) / steps_d**self.level
        if self.symmetric:
            return 2 * digits_nd / steps_d - 1
        return (digits_nd - self.levels // 2) / (self.levels // 2)

    def _lookup(self, indices_n: Tensor) -> Tensor:
        digits_nd = (indices_n[:, None] // self._basis()) % self.levels
        return self._codes(digits_nd.to(torch.get_default_dtype()))

    def _basis(self) -> Tensor:
        return torch.cat([self.levels.new_ones(1), self.levels[:-1].cumprod(dim=0)])


def default_levels(codebook_size: int, most: int = 8) -> tuple[int, ...] | None:
    """Levels between 3 and ``most``, descending, whose product is the codebook size; None if there are none."""
    if codebook_size == 1:
        return ()
    for level in range(min(most, codebook_size), 2, -1):
        if codebook_size % level == 0:
            rest = default_levels(codebook_size // level, level)
            if rest is not None:
                return (level, *rest)
    return None


def _checked_levels(codebook_size: int | None, levels: Sequence[int] | None) -> tuple[int, ...]:
    if levels is None:
        found = default_levels(positive_int("codebook_size", codebook_size)) if codebook_size != 1 else None
        if found is None:
            raise ValueError(
                f"FSQ needs a codebook_size that is a product of numbers from 3 to 8, got {codebook_size!r}"
            )
        return found
    if not levels or any(level < 3 for level in levels):
        raise ValueError(f"levels must each be at least 3, got {tuple(levels)}")
    if codebook_size is not None and codebook_size != math.prod(levels):
        raise ValueError(f"codebook_size {codebook_size} is not the product of levels {tuple(levels)}")
    return tuple(levels)
