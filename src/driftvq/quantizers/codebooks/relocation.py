"""The relocation of lost codes: those that no latent selected for long."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Part
from driftvq.quantizers.codebooks.sampling import take_over
from driftvq.quantizers.distributed import is_distributed
from driftvq.quantizers.finite import is_seen_at_once

LOST_SHARE = 0.1  # a code that remembers less of the mean number of latents has lost touch with them
# So large a share of a batch's latents may take over a lost code per step, and at most so many of one batch.
RELOCATED_SHARE, MOST_RELOCATED = 0.125, 0.5


class Relocation(Part):
    """A lost code goes to a latent z drawn with ``p(z) ∝ |z - c_win|²``, the rule of k-means++.

    Code k is lost once its memory m_k is below :data:`LOST_SHARE` of the mean memory; with the new place it gets half
    of the mean memory. ``relocated`` counts the lost codes moved so far.
    """

    training_state = ("relocated",)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("relocated", torch.zeros((), dtype=torch.int64))

    def forward(self, moved_kd: Tensor | None, batch: Batch) -> Tensor | None:
        """The displacements afterwards; the memories of codes that were relocated are set in ``batch.memory``."""
        seen, due = batch.seen, batch.seen.now.due
        if due is False:
            return moved_kd
        fair = batch.memory.mean()
        lost_k = batch.memory < LOST_SHARE * fair
        if isinstance(due, Tensor):
            lost_k = lost_k & due
        elif is_seen_at_once(lost_k) and not is_distributed() and not lost_k.numpy().any():
            return moved_kd
        most = (batch.total * min(seen.now.interval * RELOCATED_SHARE, MOST_RELOCATED)).clamp(min=1)
        latents_nd = F.embedding(seen.winners, seen.codes) + seen.away
        error_n = seen.away.square().sum(dim=1)
        places_kd = seen.codes if moved_kd is None else seen.codes + moved_kd
        places_kd, taken_k = take_over(places_kd, lost_k, latents_nd, error_n, batch.step, most, batch.units)
        batch.memory.copy_(torch.where(taken_k, fair / 2, batch.memory))
        self.relocated += taken_k.sum()
        return places_kd - seen.codes

    def readings(self) -> dict[str, float]:
        return {"relocated": self.relocated.item()}
