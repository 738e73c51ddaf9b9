"""The relocation of lost codes: those that no latent selected for long."""

from typing import ClassVar

import torch
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Part
from driftvq.quantizers.codebooks.sampling import take_over

LOST_SHARE = 0.05
"""A code that remembers less than this share of the mean number of latents has lost touch with them."""

RELOCATED_SHARE = 0.125
"""At most this share of a batch's latents may each take over a lost code, per step."""


class Relocation(Part):
    """A lost code goes to a latent z drawn with ``p(z) ∝ |z - c_win|²``, the rule of k-means++.

    Code k is lost once its memory m_k is below :data:`LOST_SHARE` of the mean memory; with the new place it gets half
    of the mean memory.

    Attributes:
        relocated: lost codes moved so far.
    """

    training_state: ClassVar[tuple[str, ...]] = ("relocated",)
    relocated: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("relocated", torch.zeros((), dtype=torch.int64))

    def forward(self, codes_kd: Tensor, batch: Batch) -> Tensor:
        """The codes afterwards; the memories of those that moved are set in ``batch.memory``."""
        fair = batch.memory.mean()
        lost_k = batch.memory < LOST_SHARE * fair
        error_n = batch.seen.away.square().sum(dim=1) * batch.seen.weight
        codes_kd, moved_k = take_over(codes_kd, lost_k, batch.latents, error_n, RELOCATED_SHARE, batch.step)
        batch.memory.copy_(torch.where(moved_k, fair / 2, batch.memory))
        self.relocated += moved_k.sum()
        return codes_kd

    def readings(self) -> dict[str, float]:
        return {"relocated": self.relocated.item()}
