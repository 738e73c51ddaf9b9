"""Residual quantization (Zeghidour et al., 2021: SoundStream)."""

from typing import Any

import torch
from torch import Tensor

from driftvq.quantizers.base import in_range, positive_int
from driftvq.quantizers.composite import CompositeQuantizer, MakeQuantizer
from driftvq.quantizers.registry import register


@register("residual_vq")
class ResidualVQ(CompositeQuantizer):
    """Each quantizer quantises what the ones before it left over; the codes add up.

    ``r_0 = z``,  ``r_{j+1} = r_j - sg(q_j)``,  ``quantized = Σ_j q_j``,  ``loss = Σ_j loss_j``

    Indices have one more dimension, the levels: ``b n q`` or ``b h w q``. With a straight-through estimator inside, the
    encoder receives the decoder's gradient once, not once per level.

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

    def _quantize(self, z_nd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        residual_nd, total_nd = z_nd, torch.zeros_like(z_nd)
        indices, loss = [], z_nd.new_zeros(())
        kept = self._kept_levels() if self.training and self.quantizer_dropout else None
        for level in range(self.indices_per_position):
            mask_n = self._level_mask(level, kept, z_nd, valid_n)
            quantized_nd, indices_n, level_loss = self.part(level)(residual_nd, mask_n)
            residual_nd = residual_nd - quantized_nd.detach()
            total_nd = total_nd + quantized_nd
            if level > 0:  # this level's copy of the encoder's gradient
                total_nd = total_nd - (z_nd - z_nd.detach())
            indices.append(indices_n)
            loss = loss + level_loss
        return total_nd, torch.stack(indices, dim=1), loss

    def _lookup(self, indices_nq: Tensor) -> Tensor:
        codes_nd = self.part(0).indices_to_codes(indices_nq[:, 0])
        for level in range(1, self.indices_per_position):
            codes_nd = codes_nd + self.part(level).indices_to_codes(indices_nq[:, level])
        return codes_nd

    def _kept_levels(self) -> Tensor:
        return torch.randint(self.dropout_min_levels, self.indices_per_position + 1, ())

    def _level_mask(self, level: int, kept: Tensor | None, z_nd: Tensor, valid_n: Tensor | None) -> Tensor | None:
        if kept is None or level < self.dropout_min_levels:
            return valid_n
        used_n = (kept.to(z_nd.device) > level).expand(len(z_nd))
        return used_n if valid_n is None else used_n & valid_n
