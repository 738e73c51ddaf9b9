"""The drift: what the latents show of the encoder's movement moves every code, selected or not.

Shape suffixes: n latents, k codes, r rows (codes or latents), d dimensions, p features.
"""

import torch
from torch import Tensor

from driftvq.functional import field_agreement, field_moments, fit_field
from driftvq.quantizers.codebooks.features import AffineFeatures
from driftvq.quantizers.codebooks.parts import Batch, Now, Part, Rows, Seen
from driftvq.quantizers.finite import is_seen_at_once

RIDGE = 0.1  # of the features' mean square, by which a fit is held back
MEMORY = 1.0  # latents per feature that a fit remembers
# How many times as long the evidence for it is remembered; the velocity at least so long, and one latent per code.
PERSISTENCE = 24.0
# How much of what was applied counts as confirmed. Where codes lie close, latents go over to other codes and do not
# show that theirs moved in vain; with less than all of it, a drift that nothing else confirms fades.
CREDIT = 0.7
MOST_NEWS = 0.1  # how much the evidence for a drift may change by one batch
EXACT = 1e-6  # latents that lie so close to their codes, squared and summed up, say nothing of a drift
MOST_FOUND = 2.0  # more evidence than latents can give, unless the moments have lost all digits
NEEDED_SHARE = 0.25  # of the latents' squared distance from their codes: where a drift makes it up, all of it is needed
AT_REST = 0.05  # with several latents per code, a drift followed by no more is left alone from one glance to the next
PATIENCE = 2.0  # so many times as long as others on average a code that is selected rarely waits for its next latent


class Drift(Part):
    """Every code moves by ``Δc = g · f(c) (W + V)``, in spreads of the codes.

    - W is the displacement ``z - c_win`` of the latents, regressed on features f of their codes (Eq. 12). The moments
      are remembered over batches, counted in latents, so that a batch of any size contributes; what was applied is
      taken out of the memory.
    - V is the velocity, a longer mean of what was applied: latents that drifted will drift on.
    - ``g = p · need``. p is how much of the field u the *next* batches confirmed, ``Σ u·(Δ + 0.7 g u) / Σ |u|²``, where
      Δ is what is left of it and g u was applied. The need is how far codes would fall behind without it, in squared
      distances of the latents from their codes: ``(4 lag)² + 4 (2 K/N)² |V|²``, where the lag ``Σ u·Δ`` is what the
      codes have not caught up with, and the velocity is counted until a rarely selected code has its next latent. Both
      are between 0 and 1. Where there is no need, no code gets lost, and codes that stay hold the encoder in place.
    """

    training_state = ("moments", "velocity", "field", "gain", "evidence", "until", "unrelated", "rates", "ridge")

    def __init__(self, features: AffineFeatures) -> None:
        super().__init__()
        self.features = features
        shape = (features.count, features.dim)
        # Remembered sums of features × (features, displacements).
        self.register_buffer("moments", torch.zeros(features.count, sum(shape)))
        self.register_buffer("velocity", torch.zeros(shape))  # V
        self.register_buffer("field", torch.zeros(shape))  # W + V of the latest step
        self.register_buffer("gain", torch.zeros(()))  # g, as it was last judged: when lost codes are relocated
        # Recent means of |u|², of the lag and of |V|², in shares of the latents' squared distance from their codes.
        self.register_buffer("evidence", torch.zeros(3))
        # Square of the steps until a rarely selected code has its next latent, over the share that is needed.
        self.register_buffer("until", torch.ones(()))
        self.register_buffer("unrelated", torch.zeros(()))  # |V|² over |g u|², if steps had nothing in common
        # How fast the fit, the evidence and the velocity are forgotten, per latent.
        forgetting, groups = -1 / (MEMORY * features.count), features.groups
        self.register_buffer("rates", torch.tensor([forgetting, *[forgetting / PERSISTENCE] * 2]))
        # As if the features of each kind together had mean square 1: n of them are divided by √n.
        ridge_p = torch.cat([torch.full((n,), float(n)) for n in groups]) * (RIDGE * len(groups) / features.count)
        self.register_buffer("ridge", ridge_p.diag())
        self.reset_()

    def prepare(self, seen: Seen) -> Seen:
        """Where there are more latents than codes, a row per code: the moments and the gradients are the same."""
        follows = self._follows(seen.now)
        if follows is False:
            return seen
        if len(seen.winners) < len(seen.codes):
            features_np = self.features.of(seen.codes, seen.winners)
            return seen._replace(rows=Rows(features_np, seen.away, seen.counted.to(seen.away.dtype), follows))
        return seen._replace(rows=Rows(self.features(seen.codes), seen.sums[:, :-1], seen.sums[:, -1], follows))

    def _follows(self, now: Now) -> Tensor | bool:
        """Whether there is a drift to follow; a boolean tensor where Python cannot know."""
        if now.glance is True:
            return True
        moves = self.gain > AT_REST
        return bool(moves) if is_seen_at_once(moves) else moves | now.glance

    def sums(self, seen: Seen) -> tuple[Tensor, ...]:
        if seen.rows is None:
            return ()
        return (field_moments(seen.rows.features.detach(), seen.rows.away, seen.rows.number),)

    def forward(self, moved_kd: Tensor | None, batch: Batch) -> Tensor | None:
        rows, now = batch.seen.rows, batch.seen.now
        if rows is None:
            return moved_kd
        (moments,), total, follows = batch.shared, batch.total, rows.follows
        if isinstance(follows, Tensor):  # as if there were no latents, where there is nothing to follow
            moments, total = moments * follows, total * follows
        if now.look is not False:
            self._look_(batch)
        kept = torch.exp(total * self.rates.to(moments))
        news = 1 - kept
        if now.due is not False:
            most = news[1].clamp(max=MOST_NEWS)
            self._judge_(moments, batch.unit, most * now.interval, now.due & follows)
        self.moments.mul_(kept[0]).add_(moments)
        field_pd = fit_field(self.moments.to(moments), self.ridge.to(moments)) + self.velocity.to(moments)
        step_pd = torch.minimum(self.gain.to(moments), total) * field_pd
        self._remember_(step_pd, news[2], follows)
        self.field.copy_(torch.where(follows, field_pd, self.field) if isinstance(follows, Tensor) else field_pd)
        of_codes = len(rows.features) == len(batch.seen.codes)
        drift_kd = rows.features.detach() @ step_pd if of_codes else self.features.moved(batch.seen.codes, step_pd)
        return drift_kd if moved_kd is None else moved_kd + drift_kd

    def _look_(self, batch: Batch) -> None:
        """What depends on how often a code is selected, which changes slowly."""
        codes, tiny = len(batch.memory), torch.finfo(batch.total.dtype).tiny
        selected = (batch.total / codes).clamp(min=tiny**0.25, max=1)
        until = PATIENCE**2 / (NEEDED_SHARE * selected.square())
        known = batch.total > 0
        if isinstance(batch.seen.now.look, Tensor):
            known = known & batch.seen.now.look
        self.until.copy_(torch.where(known, until, self.until.to(until)))
        self.rates[2].fill_(-1 / max(PERSISTENCE * MEMORY * self.features.count, codes))
        self.unrelated.copy_(torch.where(known, (-self.rates[2] * batch.total / 2).tanh(), self.unrelated))
        self.evidence.clamp_(min=-MOST_FOUND, max=MOST_FOUND)

    def _judge_(self, moments: Tensor, unit: Tensor, news: Tensor, due: Tensor | bool) -> None:
        """The gain g, from what these latents show of the field before them."""
        found = field_agreement(torch.stack([self.field, self.velocity]).to(moments), moments).flatten()[:3]
        found = found / torch.maximum(unit, found[0]).clamp(min=EXACT)
        if isinstance(due, Tensor):
            news = news * due
        self.evidence.lerp_(found.to(self.evidence), news.to(self.evidence))
        gain = self._gain(self.evidence.to(moments), self.gain.to(moments))
        self.gain.copy_(torch.where(due, gain, self.gain.to(gain)) if isinstance(due, Tensor) else gain)

    def _gain(self, evidence: Tensor, before: Tensor) -> Tensor:
        length, lag, speed = evidence.unbind()
        confirmed = torch.add(lag / length.clamp(min=torch.finfo(length.dtype).tiny), before, alpha=CREDIT)
        speed = torch.addcmul(speed, self.unrelated.to(length) * length, before.square(), value=-1).clamp(min=0)
        lag = lag.clamp(min=0)
        need = torch.addcmul(self.until.to(length) * speed, lag, lag, value=NEEDED_SHARE**-2)
        return confirmed.clamp(min=0, max=1) * need.clamp(max=1)

    def _remember_(self, step_pd: Tensor, news: Tensor, follows: Tensor | bool) -> None:
        """Keep the moments as the moved codes will see them, if the latents go on with their velocity."""
        gram_pp, joint_pd = self.moments.split([self.features.count, self.features.dim], dim=1)
        step_pd = step_pd.to(self.moments)
        velocity_pd = self.velocity * follows if isinstance(follows, Tensor) else self.velocity
        joint_pd.addmm_(gram_pp, step_pd - velocity_pd, alpha=-1)
        self.velocity.lerp_(step_pd, news.to(self.velocity))

    def loss(self, seen: Seen, unit: Tensor) -> Tensor:
        """How far the field misses what the latents did since: the embedding loss of ``c + f(c) (W + V)``.

        With ``y = f(c) (W + V)``, of which g y was applied: ``mean |Δ - (1 - g) y|²``, and its gradient by f. Where
        there is nothing to follow ``mean |Δ|²``, and none.
        """
        rows, total = seen.rows, seen.counted.sum().clamp(min=1) * seen.away.shape[1]
        if rows is None:
            return seen.away.square().sum() / total
        with torch.no_grad():
            field_pd, ahead = self.field.to(seen.away), 1 - self.gain.to(seen.away)
            if isinstance(rows.follows, Tensor):
                field_pd = field_pd * rows.follows
            moved_rd = rows.features @ field_pd
            left_rd = torch.addcmul(rows.away, rows.number[:, None], moved_rd * ahead, value=-1)
            missed = (seen.away.square().sum() - ahead * ((rows.away + left_rd) * moved_rd).sum()) / total
            # The unit goes in before the product: a compiler repeats what is cheap for the gradient, and would then
            # read buffers that have moved on.
            slope_rp = left_rd @ (field_pd.t() * (-2 / (total * unit)))
        change = (rows.features * slope_rp).sum()
        return missed + (change - change.detach())

    def rescale_(self, ratio: Tensor) -> None:
        self.moments[:, self.features.count :] *= ratio
        self.velocity.mul_(ratio)
        self.field.mul_(ratio)

    def reset_(self) -> None:
        for buffer in (self.moments, self.velocity, self.field, self.gain, self.evidence):
            buffer.zero_()
        self.evidence[2] = NEEDED_SHARE / PATIENCE**2  # of new codes a drift is expected
        self.moments[0, 0] = 1  # one latent, without displacement: there is always something to divide by

    def readings(self) -> dict[str, float]:
        return {"drift_followed": self.gain.item()}
