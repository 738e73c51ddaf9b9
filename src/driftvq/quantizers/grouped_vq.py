"""Product quantization: the channels are split into groups (heads), each with an index of its own."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from driftvq.names import positive_int
from driftvq.quantizers.composite import CompositeQuantizer, MakeQuantizer, per_part, side_by_side
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.steps import Call, LossTerms, Selection


@register("grouped_vq")
class GroupedVQ(CompositeQuantizer):
    """Channels are cut into equal groups, each quantised by itself.

    ``quantized = [q_1(z_1), …, q_G(z_G)]``,  ``loss = mean_g loss_g``

    Indices have one more dimension, the groups: ``b n g`` or ``b h w g``. Over :class:`ResidualVQ` they are those of
    the first group's levels, then of the second's: ``indices.unflatten(-1, (groups, levels))``; a call may then use
    fewer ``levels``, in each group. G is ``groups`` and divides the dimension; the other arguments are as in
    :class:`ResidualVQ`, for groups instead of levels.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int | Sequence[int],
        codebook_dim: int | None = None,
        *,
        groups: int = 2,
        quantizer: str | MakeQuantizer = "ns_vq",
        shared_codebook: bool = False,
        channel_first: bool = False,
        **options: Any,
    ) -> None:
        whole = dim if codebook_dim is None else codebook_dim
        if positive_int("codebook_dim", whole) % positive_int("groups", groups):
            raise ValueError(f"groups must divide the dimension {whole}, got {groups}")
        sizes = per_part("codebook_size", codebook_size, groups)
        super().__init__(dim, max(sizes), codebook_dim, channel_first)
        self._contain(whole // groups, sizes, quantizer, shared_codebook, [options] * groups)

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """The codes of each group before the output projection, ``(groups, …, codebook_dim / groups)``."""
        indices = self._check_indices(indices)
        own = zip(self._inner(), self._columns(indices), strict=True)
        return torch.stack([quantizer.get_codes_from_indices(columns) for quantizer, columns in own])

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        if self.shared_codebook and not self.sees_neighbours:
            return self._select_together(z_nd, call)
        groups = zip(self._inner(), z_nd.chunk(self.parts, dim=1), strict=True)
        steps = tuple(quantizer._run(z_group, call) for quantizer, z_group in groups)
        loss = torch.stack([step.selection.loss for step in steps]).mean()
        quantized_nd = torch.cat([step.quantized for step in steps], dim=1)
        return Selection(quantized_nd, side_by_side([step.indices for step in steps]), loss, lesson=None, parts=steps)

    def _select_together(self, z_nd: Tensor, call: Call) -> Selection:
        """One call for all groups, so that a shared codebook searches and learns once per step."""
        valid = None if call.valid is None else call.valid.repeat_interleave(self.parts)
        rows = z_nd.reshape(len(z_nd) * self.parts, self.part(0).dim)
        positions = torch.Size([*call.positions, self.parts])
        step = self.part(0)._run(rows, call._replace(positions=positions, valid=valid))
        indices_nq = step.indices.reshape(len(z_nd), self.parts * math.prod(step.indices.shape[1:]))
        return Selection(step.quantized.reshape_as(z_nd), indices_nq, step.selection.loss, lesson=None, parts=(step,))

    def _terms(self, selection: Selection) -> LossTerms:
        return LossTerms(*(term / len(selection.parts) for term in super()._terms(selection)))

    def _columns(self, indices_nq: Tensor) -> list[Tensor]:
        columns = indices_nq.chunk(self.parts, dim=-1)
        return list(columns) if self.part(0).indices_per_position else [column[..., 0] for column in columns]

    def _check_width(self, indices: Tensor) -> None:
        inner, width = self.part(0), indices.shape[-1] if indices.ndim else 0
        if not isinstance(inner, CompositeQuantizer) or width == 0 or width % self.parts:
            return super()._check_width(indices)
        try:
            return inner._check_width(indices[..., : width // self.parts])
        except ValueError as error:
            raise ValueError(f"of {self.parts} groups, in each: {error}") from error

    def _lookup_at(self, indices: Tensor, positions: torch.Size) -> Tensor:
        if self.shared_codebook and not self.sees_neighbours:  # all groups in one product, as in forward: to the bit
            rows = indices.reshape(len(indices) * self.parts, -1)
            rows = rows if self.part(0).indices_per_position else rows[:, 0]
            codes = self.part(0)._decode(rows, torch.Size([*positions, self.parts]))
            return codes.reshape(len(indices), self.codebook_dim)
        own = zip(self._inner(), self._columns(indices), strict=True)
        return torch.cat([quantizer._decode(columns, positions) for quantizer, columns in own], dim=1)
