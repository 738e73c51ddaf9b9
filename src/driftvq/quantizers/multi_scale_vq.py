"""Residual quantization over resolutions (Tian et al., 2024: VAR)."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.names import positive_int
from driftvq.quantizers.codebooks.base import row_weights
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.residual_vq import ResidualVQ
from driftvq.quantizers.steps import Call, Step

INTERPOLATIONS = ("linear", "bilinear", "trilinear")


@register("multi_scale_vq")
class MultiScaleVQ(ResidualVQ):
    """Levels of growing resolution, each of which quantises what the coarser ones left over.

    ``r_0 = z``,  ``q_j = U_j quantizer_j(A_j r_j)``,  ``r_{j+1} = r_j - sg(q_j)``,  ``quantized = Σ_j q_j``,
    ``loss = Σ_j loss_j``

    A_j averages the valid positions of each cell of level j, U_j interpolates linearly between the middles of cells;
    the last level has every position. Indices are those of a residual, one per level at every position, ``b h w q``, a
    coarse one the same all over its cell; :meth:`tokens` gives each level's grid without repetition.

    >>> vq = MultiScaleVQ(dim=32, codebook_size=256, scales=(1, 2, 4), channel_first=True)
    >>> quantized, indices, loss = vq(torch.randn(2, 32, 8, 8))
    >>> [tuple(level.shape) for level in vq.tokens(indices)]
    [(2, 1, 1), (2, 2, 2), (2, 4, 4), (2, 8, 8)]

    The ``scales`` are cells along each axis of the levels before the last; an axis of fewer positions has one cell for
    each, and there are at most three. One codebook serves all levels, as in VAR, unless ``shared_codebook`` is False.
    VAR interpolates bicubically and convolves the result; here it is linear, for audio and video too.
    """

    searches_beams: ClassVar[bool] = False
    leaves_out = False  # one latent would spoil the mean of its cell

    def __init__(
        self,
        dim: int,
        codebook_size: int | Sequence[int],
        codebook_dim: int | Sequence[int] | None = None,
        *,
        scales: Sequence[int] = (1, 2, 4),
        shared_codebook: bool = True,
        **options: Any,
    ) -> None:
        self.scales = tuple(positive_int("scales", scale) for scale in scales)
        if any(a >= b for a, b in zip(self.scales, self.scales[1:], strict=False)):
            raise ValueError(f"scales must become finer, got {self.scales}")
        own: dict[str, Any] = {"num_quantizers": len(self.scales) + 1, "shared_codebook": shared_codebook}
        super().__init__(dim, codebook_size, codebook_dim, **own, **options)
        self.sees_neighbours = True

    def tokens(self, indices: Tensor) -> list[Tensor]:
        """The indices of each level on its own grid, ``b h_j w_j``; where no position of a cell is valid, -1."""
        indices = self._check_indices(indices)
        return [self._of_cells(column, level) for level, column in enumerate(self._columns(indices))]

    def choices_per_index(self, indices: Tensor) -> list[Tensor]:
        own = enumerate(self.tokens(indices))
        return [choice for level, cells in own for choice in self.part(level).choices_per_index(cells)]

    def indices_of_tokens(self, tokens: Sequence[Tensor], grid: Sequence[int]) -> Tensor:
        """The indices ``b … q`` of what :meth:`tokens` gave for a grid of positions, e.g. ``(8, 8)``."""
        if not 1 <= len(tokens) <= self.parts:
            raise ValueError(f"tokens must be of 1 to {self.parts} levels, got {len(tokens)}")
        shape, spread = torch.Size([tokens[0].shape[0], *grid]), []
        for level, own in enumerate(tokens):
            (cells, cell_n), several = self._grid(shape, level, own.device), self.part(level).indices_per_position
            expected = (*cells, several) if several else tuple(cells)
            if tuple(own.shape) != expected:
                raise ValueError(f"level {level} must have tokens of shape {expected}, got {tuple(own.shape)}")
            spread.append(own.reshape(math.prod(cells), self.indices_per_part)[cell_n])
        return torch.cat(spread, dim=1).reshape(*shape, len(tokens) * self.indices_per_part)

    def _level(self, level: int, residual_nd: Tensor, call: Call) -> tuple[Step, Tensor, Tensor]:
        cells, cell_n = self._grid(call.positions, level, residual_nd.device)
        size, weight_n = math.prod(cells), row_weights(residual_nd, call.valid)
        counts_m = residual_nd.new_zeros(size).index_add(0, cell_n, weight_n)
        means_md = residual_nd.new_zeros(size, residual_nd.shape[1])
        means_md = means_md.index_add(0, cell_n, residual_nd * weight_n[:, None]) / counts_m.clamp(min=1)[:, None]
        own = call._replace(positions=cells, valid=None if call.valid is None else counts_m > 0)
        step = self.part(level)._run(means_md, own)
        quantized_nd, indices = self._spread(step.quantized, cells, call.positions), step.indices[cell_n]
        if call.valid is not None:
            quantized_nd = torch.where(call.valid[:, None], quantized_nd, 0)
            indices = torch.where(call.valid if indices.ndim == 1 else call.valid[:, None], indices, -1)
        return step, quantized_nd, indices

    def _codes(self, indices_nq: Tensor, shape: torch.Size) -> list[Tensor]:
        codes = []
        for level, column in enumerate(self._columns(indices_nq)):
            own = self._of_cells(column.reshape(*shape, *column.shape[1:]), level)
            cells = own.shape[: len(shape)]
            codes_md = self.part(level)._decode(own.flatten(end_dim=len(shape) - 1), cells)
            codes.append(self._spread(codes_md, cells, shape))
        return codes

    def _of_cells(self, indices: Tensor, level: int) -> Tensor:
        """One index for each cell: that of its valid positions."""
        shape = indices.shape[:-1] if self.part(level).indices_per_position else indices.shape
        cells, cell_n = self._grid(shape, level, indices.device)
        flat = indices.reshape(len(cell_n), math.prod(indices.shape[len(shape) :]))
        own = flat.new_full((math.prod(cells), flat.shape[1]), -1)
        own.scatter_reduce_(0, cell_n[:, None].expand_as(flat), flat, "amax")
        return own.reshape(*cells, *indices.shape[len(shape) :])

    def _grid(self, positions: torch.Size, level: int, device: torch.device) -> tuple[torch.Size, Tensor]:
        """Shape of a level's grid, the batch first, and the number of each position's cell, flat: ``(n,)``."""
        cells, cell = positions, torch.zeros((), dtype=torch.int64, device=device)
        if level < len(self.scales):
            cells = torch.Size([positions[0], *(min(self.scales[level], axis) for axis in positions[1:])])
        for count, size in zip(positions, cells, strict=True):
            cell = cell[..., None] * size + torch.arange(count, device=device) * size // max(count, 1)
        return cells, cell.flatten()

    def _spread(self, codes_md: Tensor, cells: torch.Size, positions: torch.Size) -> Tensor:
        """Cells' codes over all positions, linearly between: ``(n, d)``."""
        if cells == positions or codes_md.shape[0] == 0:
            return codes_md if cells == positions else codes_md.new_zeros(math.prod(positions), codes_md.shape[1])
        grid = codes_md.reshape(*cells, codes_md.shape[1]).movedim(-1, 1)
        mode = INTERPOLATIONS[len(cells) - 2]
        return F.interpolate(grid, size=positions[1:], mode=mode).movedim(1, -1).reshape(-1, codes_md.shape[1])

    def _check_latents(self, x: Tensor, mask: Tensor | None) -> None:
        super()._check_latents(x, mask)
        if x.ndim > 5:
            raise ValueError(f"latents may have at most three axes of positions, got shape {tuple(x.shape)}")
