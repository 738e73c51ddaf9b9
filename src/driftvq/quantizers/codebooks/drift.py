"""The drift: what the latents show of the encoder's movement moves every code, selected or not.

Shape suffixes: n latents, k codes, d dimensions, p features.
"""

from typing import ClassVar

import torch
from torch import Tensor

from driftvq.functional import field_agreement, field_moments, fit_field
from driftvq.quantizers.codebooks.features import AffineFeatures
from driftvq.quantizers.codebooks.parts import Batch, Part, Seen
from driftvq.quantizers.codebooks.winners import winner_sums

MEMORY = 1.0
"""Latents per feature that a fit remembers."""

PERSISTENCE = 24.0
"""How many times as long the velocity is remembered."""

CREDIT = 0.7
"""How much of what was applied counts as confirmed. Where codes lie close, latents go over to other codes and do not
show that theirs moved in vain; with less than all of it, a drift that nothing else confirms fades."""

LEAST_KEPT = 0.9
"""How much of the evidence for a drift is kept at least when another batch has judged it."""

FOLLOWED_SHARE = 0.25
"""A drift is followed in full where, until a code is selected again, it makes up this share of the latents' squared
distance from their codes."""


class Drift(Part):
    """Every code moves by ``Δc = g · s · f(c) (W + V)``.

    - W is the displacement ``(z - c_win) / s`` of the latents, regressed on features f of their codes (Eq. 12). The
      moments are remembered over batches, counted in latents, so that a batch of any size contributes; what was applied
      is taken out of the memory.
    - V is the velocity, a longer mean of what was applied: latents that drifted will drift on.
    - g is how much of the field u the *next* batches confirmed, ``Σ u·(Δ + 0.7 g u) / Σ |u|²`` between 0 and 1, where Δ
      is what is left of it and g u was applied; and less where the drift is short beside the distance of the latents
      from their codes, counted until a code is selected again: no code gets lost to such a drift, and codes that stay
      where they are hold the encoder in place.

    s is the spread of the codes, so nothing depends on the scale of the latents.

    Args:
        features: f.

    Attributes:
        moments: remembered sums of features × (features, displacements) ``(p, p + d)``.
        velocity: V ``(p, d)``.
        field: W + V of the latest step ``(p, d)``.
        gain: g of the latest step.
        spread: s in the latest step, in which all of these are expressed.
        evidence: recent means of the field's square, and of its product with what the next batch showed, ``(2,)``.
    """

    training_state: ClassVar[tuple[str, ...]] = ("moments", "velocity", "field", "gain", "spread", "evidence")
    moments: Tensor
    velocity: Tensor
    field: Tensor
    gain: Tensor
    spread: Tensor
    evidence: Tensor

    def __init__(self, features: AffineFeatures) -> None:
        super().__init__()
        self.features = features
        shape = (features.count, features.dim)
        self.register_buffer("moments", torch.zeros(features.count, sum(shape)))
        self.register_buffer("velocity", torch.zeros(shape))
        self.register_buffer("field", torch.zeros(shape))
        self.register_buffer("gain", torch.zeros(()))
        self.register_buffer("spread", torch.zeros(()))
        self.register_buffer("evidence", torch.zeros(2))

    def sums(self, seen: Seen) -> tuple[Tensor, ...]:
        return (field_moments(*self._observed(seen)),)

    def _observed(self, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """Features of codes, how far their latents are away, and the weight of each row.

        Where there are more latents than codes, the rows are the codes with the means of their latents: the moments of
        displacements and the gradients are the same.
        """
        if len(seen.winners) < len(seen.standard):
            return self.features.of(seen.standard, seen.winners), seen.away, seen.weight
        counts_k, sums_kd = winner_sums(seen.away, seen.winners, seen.weight, len(seen.standard))
        return self.features(seen.standard), sums_kd / counts_k.clamp(min=1)[:, None], counts_k

    def forward(self, codes_kd: Tensor, batch: Batch) -> Tensor:
        (moments,), tiny = batch.shared, torch.finfo(batch.shared[0].dtype).tiny
        self._rescale_(batch.seen.spread)
        kept = torch.exp(-batch.total / (MEMORY * self.features.count))
        # Sums over the latents become shares of their squared distance from their codes.
        unit = (batch.total * batch.reach.square()).clamp(min=tiny)
        confirmed = self._confirmed(moments, unit, kept ** (1 / PERSISTENCE))
        remembered = self.moments.to(moments) * kept + moments
        field_pd = fit_field(remembered) + self.velocity.to(moments)
        length = field_agreement(field_pd, moments)[0] / unit
        field_pd = field_pd * length.clamp(min=1).rsqrt()  # nothing goes further than the latents are away
        until_selected = (len(codes_kd) / batch.total.clamp(min=1)).clamp(min=1)
        share = confirmed * length.clamp(max=1) * until_selected.square()
        gain = confirmed * (share / FOLLOWED_SHARE).clamp(max=1) * (batch.total > 0)
        self._remember_(remembered, field_pd, gain, kept)
        return codes_kd + batch.seen.spread * self.features.moved(batch.seen.standard, gain * field_pd)

    def _rescale_(self, spread: Tensor) -> None:
        """Express what is remembered of displacements in the present spread."""
        ratio = self._ratio(spread)
        self.moments[:, self.features.count :] *= ratio
        self.velocity.mul_(ratio)
        self.field.mul_(ratio)
        self.spread.copy_(spread)

    def _ratio(self, spread: Tensor) -> Tensor:
        return torch.where(self.spread > 0, self.spread / spread, 1).to(self.spread)

    def _confirmed(self, moments: Tensor, unit: Tensor, kept: Tensor) -> Tensor:
        """Judge the field before this one by what these latents show of it."""
        square, left = field_agreement(self.field.to(moments), moments)
        found = (torch.stack([square, left + CREDIT * self.gain * square]) / unit.maximum(square)).to(self.evidence)
        self.evidence.lerp_(found, 1 - kept.clamp(min=LEAST_KEPT))
        tiny = torch.finfo(self.evidence.dtype).tiny
        return (self.evidence[1] / self.evidence[0].clamp(min=tiny)).clamp(min=0, max=1).to(moments)

    def _remember_(self, remembered: Tensor, field_pd: Tensor, gain: Tensor, kept: Tensor) -> None:
        """Keep the moments as the moved codes will see them, if the latents go on with their velocity."""
        features = self.features.count
        step_pd, velocity_pd = gain * field_pd, self.velocity.to(field_pd)
        left_pd = remembered[:, features:] - remembered[:, :features] @ (step_pd - velocity_pd)
        self.moments.copy_(torch.cat([remembered[:, :features], left_pd], dim=1))
        self.velocity.copy_(torch.lerp(step_pd, velocity_pd, kept ** (1 / PERSISTENCE)))
        self.field.copy_(field_pd)
        self.gain.copy_(gain)

    def loss(self, seen: Seen) -> Tensor:
        """How far the field misses what the latents did since: the embedding loss of ``c + f(c) (W + V)``."""
        features_np, away_nd, weight_n = self._observed(seen)
        field_pd = (self.field * self._ratio(seen.spread)).to(away_nd)
        went_nd = away_nd + features_np.detach() @ (self.gain * field_pd)
        within = _mean_square(seen.away, seen.weight) - _mean_square(away_nd, weight_n)
        return _mean_square(went_nd - features_np @ field_pd, weight_n) + within

    def reset_(self) -> None:
        for buffer in (self.moments, self.velocity, self.field, self.gain, self.spread):
            buffer.zero_()

    def readings(self) -> dict[str, float]:
        return {"drift_followed": self.gain.item()}


def _mean_square(x_nd: Tensor, weight_n: Tensor) -> Tensor:
    return (x_nd.square().mean(dim=1) * weight_n).sum() / weight_n.sum().clamp(min=1)
