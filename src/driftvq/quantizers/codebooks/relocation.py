"""The relocation of lost codes: those that no latent selected for long."""

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.quantizers.codebooks.parts import Batch, Part
from driftvq.quantizers.codebooks.sampling import find_places
from driftvq.quantizers.distributed import is_distributed
from driftvq.quantizers.finite import is_seen_at_once

LOST_SHARE = 0.1  # a code that remembers less of the mean number of latents has lost touch with them
# So large a share of a batch's latents may take over a lost code per step, and at most so many of one batch.
RELOCATED_SHARE, MOST_RELOCATED = 0.125, 0.5


class Relocation(Part):
    """A lost code goes to a latent z drawn with ``p(z) ∝ |z - c_win|²``, the rule of k-means++, where that pays.

    Code k is lost once its memory m_k is below :data:`LOST_SHARE` of the mean memory m̄. It may serve a few latents now
    and then, so it goes if ``m_k < 0.1 m̄ · |z - c_win|² / ē²``: to a latent that is as badly served as those drawn are
    on average, ``ē² = (1 + 2/d) · mean |z - c_win|²`` for Gaussian errors, or later to another one. With its new place
    it gets half of the mean memory. ``relocated`` counts the lost codes moved so far.
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
        fair, dim = batch.memory.mean(), seen.away.shape[1]
        limit = LOST_SHARE * fair
        lost_k = batch.memory < limit
        if isinstance(due, Tensor):
            lost_k = lost_k & due
        elif is_seen_at_once(lost_k) and not is_distributed() and not lost_k.numpy().any():
            return moved_kd
        most = (batch.total * min(seen.now.interval * RELOCATED_SHARE, MOST_RELOCATED)).clamp(min=1)
        error_n = seen.away.square().sum(dim=1)
        rows_nv = torch.cat([F.embedding(seen.winners, seen.codes) + seen.away, error_n[:, None]], dim=1)
        rows_kv, taken_k = find_places(lost_k, rows_nv, error_n, batch.step, most, batch.units)
        places_kd, error_k = rows_kv[:, :-1], rows_kv[:, -1]
        usual = (1 + 2 / dim) * batch.unit / batch.total
        taken_k = taken_k & (batch.memory < error_k * (limit / usual))
        batch.memory.masked_fill_(taken_k, fair / 2)
        self.relocated += taken_k.sum()
        stay_kd = torch.zeros_like(seen.codes) if moved_kd is None else moved_kd
        return torch.where(taken_k[:, None], places_kd - seen.codes, stay_kd)

    def readings(self) -> dict[str, float]:
        return {"relocated": self.relocated.item()}
