"""The winners: each selected code goes to the running mean of its latents."""

import torch
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Part


class Winners(Part):
    """Online k-means: ``c_k ← c_k + n_k/m_k · (z̄_k - c_k)``.

    n_k latents of the batch selected code k, z̄_k is their mean, and m_k counts the latents that the code remembers,
    this batch's included. With a memory that grows with all latents seen, the step falls like 1/t, as Robbins and Monro
    ask; on a fixed cloud every code ends at the mean of its cell (Suppl. 8).
    """

    def forward(self, moved_kd: Tensor | None, batch: Batch) -> Tensor:
        memory_k1 = batch.memory[:, None]
        if moved_kd is None:
            return batch.sums / memory_k1
        left_kd = torch.addcmul(batch.sums, batch.counts[:, None], moved_kd, value=-1)
        return torch.addcdiv(moved_kd, left_kd, memory_k1)
