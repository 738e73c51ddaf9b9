"""Residual quantization (Zeghidour et al., 2021: SoundStream)."""

from typing import Any

import torch
from torch import Tensor

from driftvq.quantizers.arguments import in_range, positive_int
from driftvq.quantizers.base import Selection
from driftvq.quantizers.codebooks.base import Lesson
from driftvq.quantizers.composite import CompositeQuantizer, MakeQuantizer
from driftvq.quantizers.registry import register


@register("residual_vq")
class ResidualVQ(CompositeQuantizer):
    """Each quantizer quantises what the ones before it left over; the codes add up.

    ``r_0 = z``,  ``r_{j+1} = r_j - sg(q_j)``,  ``quantized = Σ_j q_j``,  ``loss = Σ_j loss_j``

    Indices have one more dimension, the levels: ``b n q`` or ``b h w q``. The encoder receives the mean of the levels'
    gradients: with straight-through inside, the decoder's gradient once and not once per level.

    Args:
        codebook_size: codes per level.
        num_quantizers: levels.
        quantizer: name of the inner quantizer, or what makes one.
        shared_codebook: one codebook serves all levels.
        quantizer_dropout: in training use only the first levels, a random number of them per batch; the others then
            have index -1, no loss and no update.
        dropout_min_levels: levels that are always used.
        options: arguments of the inner quantizers.
        dim, codebook_dim, channel_first: see :class:`driftvq.quantizers.base.Quantizer`.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        num_quantizers: int = 4,
        quantizer: str | MakeQuantizer = "ns_vq",
        shared_codebook: bool = False,
        quantizer_dropout: bool = False,
        dropout_min_levels: int = 1,
        channel_first: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            dim,
            codebook_size,
            codebook_dim,
            channel_first,
            parts=positive_int("num_quantizers", num_quantizers),
            part_dim=dim if codebook_dim is None else codebook_dim,
            quantizer=quantizer,
            shared_codebook=shared_codebook,
            options=options,
        )
        self.quantizer_dropout = quantizer_dropout
        self.dropout_min_levels = int(in_range("dropout_min_levels", dropout_min_levels, 1, num_quantizers))

    def _select(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        levels = self.indices_per_position
        kept = self._kept_levels(z_nd.device) if self.training and self.quantizer_dropout else None
        residual_nd, total_nd, gradient_nd = z_nd, torch.zeros_like(z_nd), torch.zeros_like(z_nd)
        indices, lessons, loss = [], [], z_nd.new_zeros(())
        for level in range(levels):
            mask_n = self._level_mask(level, kept, z_nd, valid_n)
            selection = self.part(level)._run(residual_nd, mask_n)
            lessons.append(selection.lesson)
            codes_nd = selection.quantized.detach()
            residual_nd, total_nd = residual_nd - codes_nd, total_nd + codes_nd
            gradient_nd = gradient_nd + (selection.quantized - codes_nd)
            indices.append(selection.indices)
            loss = loss + selection.loss
        if self.learns:
            self._teach_(lessons)
        indices_nq = torch.stack(indices, dim=1)
        return Selection(total_nd + gradient_nd / (levels if kept is None else kept), indices_nq, loss, lesson=None)

    def _teach_(self, lessons: list[Lesson | None]) -> None:
        """Let each codebook learn once: a shared one from all levels together."""
        if not self.shared_codebook:
            for level, lesson in enumerate(lessons):
                self.part(level)._learn_(lesson)
            return
        shown = [lesson for lesson in lessons if lesson is not None]
        self.part(0)._learn_(Lesson.joined(shown) if shown else None)

    def _lookup(self, indices_nq: Tensor) -> Tensor:
        codes_nd = self.part(0).indices_to_codes(indices_nq[:, 0])
        for level in range(1, self.indices_per_position):
            codes_nd = codes_nd + self.part(level).indices_to_codes(indices_nq[:, level])
        return codes_nd

    def _kept_levels(self, device: torch.device) -> Tensor:
        return torch.randint(self.dropout_min_levels, self.indices_per_position + 1, (), device=device)

    def _level_mask(self, level: int, kept: Tensor | None, z_nd: Tensor, valid_n: Tensor | None) -> Tensor | None:
        if kept is None or level < self.dropout_min_levels:
            return valid_n
        used_n = (kept > level).expand(len(z_nd))
        return used_n if valid_n is None else used_n & valid_n
