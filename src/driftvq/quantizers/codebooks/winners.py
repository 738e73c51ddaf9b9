"""The winners: each selected code goes to the running mean of its latents.

Shape suffixes: n latents, k codes, d dimensions.
"""

import torch
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Part


class Winners(Part):
    """Online k-means: ``c_k ← c_k + n_k/m_k · (z̄_k - c_k)``.

    n_k latents of the batch selected code k, z̄_k is their mean, and m_k counts the latents that the code remembers,
    this batch's included. With a memory that grows with all latents seen, the step falls like 1/t, as Robbins and Monro
    ask; on a fixed cloud every code ends at the mean of its cell (Suppl. 8).
    """

    def forward(self, codes_kd: Tensor, batch: Batch) -> Tensor:
        rate_k = batch.counts / batch.memory.clamp(min=torch.finfo(batch.memory.dtype).tiny)
        means_kd = batch.sums / batch.counts.clamp(min=1)[:, None]
        return codes_kd + torch.where(batch.counts > 0, rate_k, 0)[:, None] * (means_kd - codes_kd)


def winner_sums(z_nd: Tensor, winners_n: Tensor, weight_n: Tensor, codebook_size: int) -> tuple[Tensor, Tensor]:
    """Number ``(k,)`` and sum ``(k, d)`` of this process's latents that selected each code."""
    counts_k = z_nd.new_zeros(codebook_size).index_add_(0, winners_n, weight_n)
    sums_kd = z_nd.new_zeros(codebook_size, z_nd.shape[1]).index_add_(0, winners_n, z_nd * weight_n[:, None])
    return counts_k, sums_kd
