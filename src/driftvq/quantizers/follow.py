"""The default update of NS-VQ: codes follow the latents, selected or not, with nothing to tune.

Shape suffixes: n latents, k codes, d dimensions.
"""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import Drift, DriftMoments, drift_moments, drift_persistence, fit_drift
from driftvq.quantizers.ema_vq import winner_moments
from driftvq.quantizers.growth import Rule, halved
from driftvq.quantizers.sync import row_counts, sample_rows, sum_over_processes

MIN_MEMORY = 2.0
"""Latents per code that a code's running mean remembers at least."""

MEMORY_SHARE = 0.05
"""Share of all latents seen so far that it remembers later on: the step falls like 1/t, as Robbins and Monro ask."""

LOST_SHARE = 0.05
"""A code that holds less than this share of the mean memory has lost touch with the latents."""

FOLLOWED_SHARE = 0.25
"""A drift is followed in full where it makes up this share of the latents' squared distance from their codes."""

RELOCATED_SHARE = 0.125
"""At most this share of a batch's latents may each take over a lost code, per step."""

COMMITMENT_WEIGHT, COMMITMENT_DIM = 0.25, 64
"""The paper's β, and the dimension from which on it is the default."""


def commitment_weight(dim: int) -> float:
    """The default β of a codebook that follows the latents, ``0.25 · min(1, d/64)``.

    The commitment loss is a mean over dimensions: with few of them a given β pulls a latent to its code the harder, and
    flattens what the decoder does not use yet. Below 64 dimensions the pull on a latent stays that of 64.
    """
    return COMMITMENT_WEIGHT * min(1.0, dim / COMMITMENT_DIM)


class Fitted(NamedTuple):
    """The drift of a batch, the sums it was fitted to, and each latent's squared distance from its code ``(n,)``."""

    drift: Drift
    moments: DriftMoments
    error: Tensor


class Follower(nn.Module):
    """Moves a codebook after the latents, in three parts, once per training step.

    1. **Drift.** The latents' displacement from their codes is fitted by an affine map, which moves *every* code. The
       map is scaled by how much of it the next batches confirmed lately, and down where it is short beside the
       latents' distance from their codes: no code gets lost to such a drift, and codes that stay where they are hold
       the encoder in place.
    2. **Winners.** Each selected code goes to the running mean of its latents: online k-means.
    3. **Lost codes.** A code that no latent selected for long goes to a latent, drawn with probability proportional to
       its squared distance from its code: the k-means++ rule.

    Times are counted in latents per code, distances in those of the batch: nothing depends on the scale of the latents,
    on K, on d, on the batch size or on the length of training.

    Args:
        codebook_size: K.
        dim: dimension of a code.

    Attributes:
        mass: latents in each code's memory, ``(k,)``.
        seen: latents so far.
        evidence: recent means of the drift's square, and of its product with what the next batch showed, for shift and
            linear part, ``(2, 2)``.
        gain: how much of the fitted shift and linear part the latest step applied, ``(2,)``.
        last_shift: the latest fitted shift ``(d,)``.
        last_linear: and the linear part ``(d, d)``.
        relocated: lost codes moved so far.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"mass": halved}
    mass: Tensor
    seen: Tensor
    evidence: Tensor
    gain: Tensor
    last_shift: Tensor
    last_linear: Tensor
    relocated: Tensor

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("mass", torch.full((codebook_size,), MIN_MEMORY))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("evidence", torch.zeros(2, 2))
        self.register_buffer("gain", torch.zeros(2))
        self.register_buffer("last_shift", torch.zeros(dim))
        self.register_buffer("last_linear", torch.zeros(dim, dim))
        self.register_buffer("relocated", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(
        self,
        codes_kd: Tensor,
        z_nd: Tensor,
        winners_n: Tensor,
        valid_n: Tensor | None,
        step: Tensor,
        fitted: Fitted | None = None,
    ) -> Tensor:
        """The codes after this step ``(k, d)``; ``fitted`` is what :meth:`fit` gave for them, if it was asked."""
        drift, moments, error_n = self.fit(codes_kd, z_nd, winners_n, valid_n) if fitted is None else fitted
        counts_k, sums_kd = winner_moments(z_nd, winners_n, valid_n, len(codes_kd))
        self._remember_(self._age_(counts_k), drift, moments)
        codes_kd = self.drifted(codes_kd, drift)
        rate_k = counts_k / self.mass.clamp(min=torch.finfo(self.mass.dtype).tiny)
        means_kd = sums_kd / counts_k.clamp(min=1)[:, None]
        codes_kd = codes_kd + torch.where(counts_k > 0, rate_k, 0)[:, None] * (means_kd - codes_kd)
        return self._relocate_(codes_kd, z_nd, error_n, step)

    @torch.no_grad()
    def fit(self, codes_kd: Tensor, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> Fitted:
        """The drift that the latents of all processes show."""
        weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
        selected_nd, centre_d = F.embedding(winners_n, codes_kd), codes_kd.mean(dim=0)
        moved_nd = z_nd - selected_nd
        local = drift_moments(selected_nd - centre_d, moved_nd, weight_n)
        moments = DriftMoments(*sum_over_processes(*local))
        drift = fit_drift(moments)
        error_n = moved_nd.square().sum(dim=1) * weight_n
        return Fitted(drift._replace(origin=drift.origin + centre_d), moments, error_n)

    @torch.no_grad()
    def drifted(self, codes_kd: Tensor, drift: Drift) -> Tensor:
        """The codes after the first part only ``(k, d)``, followed as far as the latest drifts were confirmed."""
        linear_gain = self.gain[1].to(codes_kd.dtype)
        return codes_kd + self.gain[0] * drift.shift + linear_gain * ((codes_kd - drift.origin) @ drift.linear)

    @property
    def latents_step(self) -> Tensor:
        """How far the latents move per step lately: root mean square of the drift as it is applied."""
        return (self.gain.square() * self.evidence[0]).sum().sqrt()

    def readings(self) -> dict[str, float]:
        """For logs: how much of shift and linear drift the latest step applied, lost codes moved so far."""
        shift, linear = self.gain.tolist()
        return {"shift_followed": shift, "linear_followed": linear, "relocated": self.relocated.item()}

    def reset_(self) -> None:
        """The codebook was replaced: forget its codes' memories and the latest drift, not how far drifts last."""
        self.mass.fill_(MIN_MEMORY)
        self.last_shift.zero_()
        self.last_linear.zero_()

    def _age_(self, counts_k: Tensor) -> Tensor:
        """Let the codes' memories fade by this batch, and take it in; how much of a memory is kept."""
        latents = counts_k.sum()
        self.seen += latents.to(torch.int64)
        horizon = (MEMORY_SHARE * self.seen).clamp(min=MIN_MEMORY * len(self.mass))
        kept = torch.exp(-latents / horizon)
        self.mass.mul_(kept).add_(counts_k)
        return kept

    def _remember_(self, kept: Tensor, drift: Drift, moments: DriftMoments) -> None:
        """Judge the drift before this one, of which the share that was applied counts as confirmed; set the gain."""
        square, left = drift_persistence(self.last_shift.to(drift.shift), self.last_linear.to(drift.linear), moments)
        evidence = torch.stack([square, left + self.gain * square])
        self.evidence.lerp_(evidence.to(self.evidence), 1 - kept)
        self.last_shift.copy_(drift.shift)
        self.last_linear.copy_(drift.linear)
        tiny = torch.finfo(self.evidence.dtype).tiny
        confirmed = (self.evidence[1] / self.evidence[0].clamp(min=tiny)).clamp(min=0, max=1)
        distance = moments.moved_squared / moments.latents.clamp(min=1)
        share = confirmed * drift.signal / distance.clamp(min=tiny)
        self.gain.copy_(confirmed * (share / FOLLOWED_SHARE).clamp(max=1))

    def _relocate_(self, codes_kd: Tensor, z_nd: Tensor, error_n: Tensor, step: Tensor) -> Tensor:
        """Hand lost codes to latents that are badly served."""
        fair = self.mass.mean()
        lost_k = self.mass < LOST_SHARE * fair
        sizes = row_counts(z_nd)
        most = min(len(codes_kd), max(1, int(RELOCATED_SHARE * sum(sizes))))
        rows_md, available = sample_rows(z_nd, error_n, most, step, sizes)
        order_k = lost_k.cumsum(dim=0)
        moved_k = lost_k & (order_k <= available)
        fresh_kd = rows_md[(order_k - 1).clamp(min=0, max=most - 1)].to(codes_kd.dtype)
        self.mass.copy_(torch.where(moved_k, fair / 2, self.mass))
        self.relocated += moved_k.sum()
        return torch.where(moved_k[:, None], fresh_kd, codes_kd)
