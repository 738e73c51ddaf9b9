"""Product quantization: the channels are split into groups (heads), each with an index of its own."""

from typing import Any

import torch
from torch import Tensor

from driftvq.quantizers.arguments import positive_int
from driftvq.quantizers.base import Selection
from driftvq.quantizers.composite import CompositeQuantizer, MakeQuantizer
from driftvq.quantizers.registry import register


@register("grouped_vq")
class GroupedVQ(CompositeQuantizer):
    """Channels are cut into equal groups, each quantised by itself.

    ``quantized = [q_1(z_1), …, q_G(z_G)]``,  ``loss = mean_g loss_g``

    Indices have one more dimension, the groups: ``b n g`` or ``b h w g``.

    Args:
        codebook_size: codes per group.
        groups: G; divides the dimension.
        quantizer: name of the inner quantizer, or what makes one.
        shared_codebook: one codebook serves all groups.
        options: arguments of the inner quantizers.
        dim, codebook_dim, channel_first: see :class:`driftvq.quantizers.base.Quantizer`.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
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
        super().__init__(
            dim,
            codebook_size,
            codebook_dim,
            channel_first,
            parts=groups,
            part_dim=whole // groups,
            quantizer=quantizer,
            shared_codebook=shared_codebook,
            options=options,
        )

    def _select(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        if self.shared_codebook:
            return self._select_together(z_nd, valid_n)
        outputs = [
            self.part(group)(z_group, valid_n) for group, z_group in enumerate(z_nd.chunk(self.indices_per_position, 1))
        ]
        quantized, indices, losses = zip(*outputs, strict=True)
        indices_ng = torch.stack(indices, dim=1)
        return Selection(torch.cat(quantized, dim=1), indices_ng, torch.stack(losses).mean(), lesson=None)

    def _select_together(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        """One call for all groups, so that a shared codebook learns once per step."""
        groups = self.indices_per_position
        mask = None if valid_n is None else valid_n.repeat_interleave(groups)
        quantized, indices, loss = self.part(0)(z_nd.reshape(len(z_nd) * groups, self.part(0).dim), mask)
        indices_ng = indices.reshape(len(z_nd), groups)
        return Selection(quantized.reshape_as(z_nd), indices_ng, loss, lesson=None)

    def _lookup(self, indices_ng: Tensor) -> Tensor:
        parts = [
            self.part(group).indices_to_codes(indices_n) for group, indices_n in enumerate(indices_ng.unbind(dim=1))
        ]
        return torch.cat(parts, dim=1)
