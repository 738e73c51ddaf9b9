"""A codebook that follows the latents, with nothing to tune."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.names import one_of, positive_int
from driftvq.quantizers.codebooks.base import Codebook, Lesson, Match, change_where_, initial_codes
from driftvq.quantizers.codebooks.clock import FIRST_LOOKS, Clock
from driftvq.quantizers.codebooks.drift import Drift
from driftvq.quantizers.codebooks.growth import Rule, between, halved
from driftvq.quantizers.codebooks.parts import Batch, Part, Seen
from driftvq.quantizers.codebooks.relocation import Relocation
from driftvq.quantizers.codebooks.winners import Winners
from driftvq.quantizers.distributed import by_process, sum_over_processes

PARTS = ("drift", "winners", "relocation")  # what moves the codes, in this order
COMMITMENT_WEIGHT, COMMITMENT_DIM = 0.25, 64  # the paper's β, and the dimension from which on it is the default

MIN_MEMORY = 3.0  # latents per code that the codes remember at least, in the long run
# Latents that a new code remembers: where it began counts for little, and one that no latent selects is soon lost.
FIRST_MEMORY = 1.0
MEMORY_SHARE = 0.05  # of all latents seen so far that it remembers later on
LEAST_MEMORY = 1e-6  # latents; what no code remembers less of

OUTLIER = 8.0  # a latent that lies more than so many times the usual distance from its code counts as one at that
CROWDED = 0.7  # where the usual distance is this share of the limit, most lie beyond it: they are no outliers then
LEAST_REACH = 0.01  # spreads; with a shorter usual distance codes that once fit exactly would see outliers for ever
# Where the spread has changed so many times from one look to the next, nothing remembered of distances holds. Where
# latents are out of reach it becomes twice as many times as large.
OUT_OF_SIGHT = 1e4
NO_LIMIT = torch.finfo(torch.bfloat16).max  # none, and finite when a module moves from one precision to another


class FollowingCodes(Codebook):
    """Codes that are moved by parts after each training step: drift, winners and relocation.

    Times are counted in latents per code and distances in spreads of the codes, so nothing depends on the scale of the
    latents, on K, on d, on the batch size or on the length of training. One wild latent moves nothing far, and a
    codebook that is not finite is never taken over. ``trained`` codes also get a gradient, from the decoder.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between, "memory": halved}
    training_state = ("memory", "seen", "horizon", "origin", "spread", "limit")
    leaves_out = True

    def __init__(self, codebook_size: int, dim: int, parts: Mapping[str, Part], trained: bool) -> None:
        super().__init__()
        codes_kd = initial_codes(codebook_size, dim)
        if trained:
            self.codes = nn.Parameter(codes_kd)
        else:
            self.register_buffer("codes", codes_kd)
        self.register_buffer("memory", torch.full((codebook_size,), FIRST_MEMORY))  # latents that each code remembers
        self.register_buffer("seen", torch.zeros(()))  # latents so far
        self.register_buffer("horizon", torch.zeros(()))  # latents that the codes remember together, negative
        # The frame in which latents are seen: the codes' mean, and their root mean square deviation.
        self.register_buffer("origin", torch.zeros(dim))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("limit", torch.ones(()))  # in spreads: a latent further from its code counts as one there
        self.clock = Clock()  # steps since the codes were looked at
        self.parts = nn.ModuleDict(dict(parts))
        self.set_(codes_kd)
        self.clock.agree_()  # a loader may write the buffer

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        match = super().match(z_nd, codes_kd, valid_n, choices_n)
        if not self.training:
            return match
        seen = self._look(z_nd, match.winners, match.codes, valid_n)
        errors = [self._in_latents(part.loss(seen, self._usual(z_nd))) for part in self._parts() if part.trained]
        loss = sum(errors[1:], errors[0]) if errors else None
        if loss is not None and not loss.requires_grad and not z_nd.requires_grad:
            # No part is due and nothing else is trained: still a loss that a loop may call backward of.
            loss = loss + sum(parameter.sum() * 0 for parameter in self.parameters())
        return match._replace(loss=loss, seen=seen)

    def _look(self, z_nd: Tensor, winners_n: Tensor, codes_nd: Tensor, valid_n: Tensor | None) -> Seen:
        """The latents beside their codes, and what the parts make of them; one that is not finite does not count."""
        with torch.no_grad():
            codes_kd = (self.codes.detach().to(z_nd) - self.origin.to(z_nd)) / self.spread.to(z_nd)
            away_nd = (z_nd - codes_nd).div_(self.spread.to(z_nd))
            near_n = (self.limit.to(z_nd) / torch.linalg.vector_norm(away_nd, dim=1)).clamp_(max=1)
            if valid_n is not None:
                near_n = near_n * valid_n
            away_nd.mul_(near_n[:, None]).nan_to_num_(nan=0, posinf=0, neginf=0)
            counted_n = near_n > 0
            rows_nv = torch.cat([away_nd, counted_n[:, None]], dim=1)
            sums_kv = rows_nv.new_zeros(len(codes_kd), rows_nv.shape[1]).index_add_(0, winners_n, rows_nv)
            seen = Seen(codes_kd, winners_n, away_nd, counted_n, sums_kv, self.clock.now(z_nd, len(codes_kd)))
        for part in self._parts():
            seen = part.prepare(seen)
        return seen

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        seen: Seen | None = lesson.seen
        if seen is None:
            codes_nd = F.embedding(lesson.winners, self.codes.to(lesson.latents))
            seen = self._look(lesson.latents, lesson.winners, codes_nd, lesson.valid)
        self.clock.tick_(lesson.latents)
        parts = self._parts()
        shared = [part.sums(seen) for part in parts]
        flat = seen.away.flatten()
        unit_r = by_process(flat.dot(flat))  # ``Σ away²`` in one pass
        sums_kv, units_r, *joined = sum_over_processes(seen.sums, unit_r, *sum(shared, ()))
        sums_kd, counts_k = sums_kv[:, :-1], sums_kv[:, -1]
        total = counts_k.sum()
        self.seen += total
        self.memory.mul_(torch.exp(total / self.horizon)).add_(counts_k)  # the codes' memories fade by this batch
        batch = Batch(seen, lesson.step, total, units_r, counts_k, sums_kd, self.memory)
        moved_kd: Tensor | None = None
        for part, own in zip(parts, shared, strict=True):
            mine, joined = tuple(joined[: len(own)]), joined[len(own) :]
            moved_kd = part(moved_kd, replace(batch, shared=mine))
        if moved_kd is not None:  # whatever went wrong, a codebook stays finite
            moved_kd = torch.nan_to_num(moved_kd, nan=0, posinf=0, neginf=0)
            self.codes.copy_(torch.addcmul(self.codes.to(moved_kd), moved_kd, self.spread.to(moved_kd)))
        self._look_again_(batch, seen.now.look)
        return counts_k

    def _look_again_(self, batch: Batch, look: Tensor | bool) -> None:
        if look is False:
            return
        known, reach = batch.total > 0, (batch.unit / batch.total.clamp(min=1)).sqrt()
        limit = torch.where(known, OUTLIER * reach.clamp(min=LEAST_REACH), self.limit.to(reach))
        # Not at first, when codes may lie on the latents that they come from.
        crowded = (reach > CROWDED * self.limit) & (self.seen > (1 + FIRST_LOOKS) * batch.total)
        spread = torch.where(known, torch.where(crowded, 2 * OUT_OF_SIGHT * self.spread, 0), 1)
        if isinstance(look, Tensor):
            change_where_(look, self.buffers(), lambda: self._frame_(limit, spread))
        else:
            self._frame_(limit, spread)

    def _frame_(self, limit: Tensor, instead: Tensor | None = None) -> None:
        """Look at the latents from where the codes are now.

        Where these lie too close to see any, ``instead`` is the spread that is taken in place of theirs; 0: theirs.
        """
        codes_kd = self.codes.detach().to(torch.promote_types(self.codes.dtype, torch.float32))
        origin_d = codes_kd.mean(dim=0)
        spread, largest = root_mean_square(codes_kd - origin_d), codes_kd.abs().amax()
        alone = spread <= 8 * torch.finfo(codes_kd.dtype).eps * largest  # all in one place, as far as numbers can tell
        spread = torch.where(alone, torch.where(largest > 0, largest, 1), spread)
        if instead is not None:
            spread = torch.where(instead > 0, instead.to(spread), spread)
        ratio = self.spread / spread
        self.horizon.copy_((self.seen * -MEMORY_SHARE).clamp(max=-MIN_MEMORY * len(self.memory)))
        self.memory.clamp_(min=LEAST_MEMORY)
        self.origin.copy_(origin_d)
        self.spread.copy_(spread)
        lost = (ratio > OUT_OF_SIGHT) | (ratio < 1 / OUT_OF_SIGHT)
        limit = torch.where(alone, NO_LIMIT, torch.where(lost, OUTLIER, limit * ratio))
        self.limit.copy_(limit.clamp(max=NO_LIMIT))  # one that is none cannot grow
        for part in self._parts():
            part.rescale_(torch.where(lost, 0, ratio))

    def _usual(self, z_nd: Tensor) -> Tensor:
        """``mean away²``: in this unit the gradient of an error is the same for latents of any scale."""
        return ((self.limit / OUTLIER).square() / self.codes.shape[1]).to(z_nd)

    def _in_latents(self, error: Tensor) -> Tensor:
        """``s² · error``, with the gradient of the error."""
        value = error.detach()
        return value * self.spread.square() + (error - value)

    def _parts(self) -> list[Part]:
        return [part for part in self.parts.values() if isinstance(part, Part)]

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.codes.copy_(codes_kd)
        self.memory.fill_(FIRST_MEMORY)
        self._frame_(self.limit)
        self.limit.fill_(min(torch.finfo(self.limit.dtype).max, NO_LIMIT))
        self.clock.start_()
        for part in self._parts():
            part.reset_()

    def busyness(self) -> Tensor:
        return self.memory

    def readings(self) -> dict[str, float]:
        return {name: value for part in self._parts() for name, value in part.readings().items()}


def make_parts(names: Sequence[str], make_drift: Callable[[], Drift]) -> dict[str, Part]:
    """The parts of these names, in the order in which they act."""
    for name in names:
        one_of("parts", name, PARTS)
    makers: dict[str, Callable[[], Part]] = {"drift": make_drift, "winners": Winners, "relocation": Relocation}
    return {name: makers[name]() for name in PARTS if name in names}


def default_commitment(dim: int) -> float:
    """The default β of a codebook that follows the latents, ``0.25 · min(1, d/64)``.

    The commitment loss is a mean over dimensions: with few of them a given β pulls a latent to its code the harder, and
    flattens what the decoder does not use yet. Below 64 dimensions the pull on a latent stays that of 64.
    """
    return COMMITMENT_WEIGHT * min(1.0, positive_int("dim", dim) / COMMITMENT_DIM)


def root_mean_square(x_kd: Tensor) -> Tensor:
    """``√mean x²``, at any scale of x."""
    largest = x_kd.abs().amax()
    unit = torch.where(largest > 0, largest, 1)
    return (x_kd / unit).square().mean().sqrt() * unit
