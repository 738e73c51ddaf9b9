"""A codebook that follows the latents, with nothing to tune.

Shape suffixes: n latents, k codes, d dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import nearest
from driftvq.quantizers.arguments import one_of, positive_int
from driftvq.quantizers.codebooks.base import Codebook, Lesson, Match, initial_codes
from driftvq.quantizers.codebooks.drift import Drift
from driftvq.quantizers.codebooks.growth import Rule, between, halved
from driftvq.quantizers.codebooks.parts import Batch, Part, Seen
from driftvq.quantizers.codebooks.relocation import Relocation
from driftvq.quantizers.codebooks.winners import Winners, winner_sums
from driftvq.quantizers.distributed import sum_over_processes

MIN_MEMORY = 2.0
"""Latents per code that a code remembers at least."""

MEMORY_SHARE = 0.05
"""Share of all latents seen so far that it remembers later on."""

COMMITMENT_WEIGHT, COMMITMENT_DIM = 0.25, 64
"""The paper's β, and the dimension from which on it is the default."""

PARTS = ("drift", "winners", "relocation")
"""What moves the codes, in this order."""

OUTLIER = 8.0
"""A latent that lies more than so many times the usual distance from its code counts as one at that distance."""


class FollowingCodes(Codebook):
    """Codes that are moved by parts after each training step: drift, winners and relocation.

    Times are counted in latents per code and distances in spreads of the codes, so nothing depends on the scale of the
    latents, on K, on d, on the batch size or on the length of training. One wild latent moves nothing far, and a
    codebook that is not finite is never taken over.

    Args:
        codebook_size: K.
        dim: dimension of a code.
        parts: by name, in the order in which they act.
        trained: the codes also get a gradient, from the decoder.

    Attributes:
        memory: latents that each code remembers, ``(k,)``.
        seen: latents so far.
        reach: root mean square distance of the latest latents from their codes, in spreads of the codes.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between, "memory": halved}
    training_state: ClassVar[tuple[str, ...]] = ("memory", "seen", "reach")
    codes: Tensor
    memory: Tensor
    seen: Tensor
    reach: Tensor

    def __init__(self, codebook_size: int, dim: int, parts: Mapping[str, Part], trained: bool) -> None:
        super().__init__()
        codes_kd = initial_codes(codebook_size, dim)
        if trained:
            self.codes = nn.Parameter(codes_kd)
        else:
            self.register_buffer("codes", codes_kd)
        self.register_buffer("memory", torch.full((codebook_size,), MIN_MEMORY))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("reach", torch.zeros(()))
        self.parts = nn.ModuleDict(dict(parts))

    @property
    def stored(self) -> Tensor:
        return self.codes

    def forward(self) -> Tensor:
        return self.codes

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        winners_n = nearest(z_nd, codes_kd) if choices_n is None else choices_n
        codes_nd = F.embedding(winners_n, codes_kd)
        trained = [part for part in self._parts() if part.trained]
        if not trained or not self.training:
            return Match(winners_n, codes_nd)
        with torch.no_grad():
            weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
            seen = self._look(z_nd.detach(), winners_n, weight_n)
        error = torch.stack([part.loss(seen) for part in trained]).sum()
        return Match(winners_n, codes_nd, _scale_free(error, seen))

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        codes_kd, parts = self.codes.to(lesson.latents), self._parts()
        seen = self._look(lesson.latents, lesson.winners, lesson.weight)
        latents_nd = F.embedding(seen.winners, codes_kd) + seen.spread * seen.away
        squares_n = seen.away.square().sum(dim=1) * seen.weight
        sums = [part.sums(seen) for part in parts]
        counts_k, sums_kd, square, *joined = sum_over_processes(
            *winner_sums(latents_nd, seen.winners, seen.weight, len(codes_kd)), squares_n.sum(), *sum(sums, ())
        )
        total = counts_k.sum()
        self._remember_(counts_k, total)
        self.reach.copy_(torch.where(total > 0, (square / total.clamp(min=1)).sqrt(), self.reach))
        batch = Batch(seen, latents_nd, lesson.step, total, self.reach, counts_k, sums_kd, self.memory)
        for part, own in zip(parts, sums, strict=True):
            shared, joined = tuple(joined[: len(own)]), joined[len(own) :]
            codes_kd = part(codes_kd, replace(batch, shared=shared))
        self.codes.copy_(torch.where(codes_kd.isfinite().all(), codes_kd, self.codes.to(codes_kd)))
        return counts_k

    def _look(self, z_nd: Tensor, winners_n: Tensor, weight_n: Tensor) -> Seen:
        """The latents beside their codes."""
        codes_kd = self.codes.detach().to(z_nd)
        origin_d = codes_kd.mean(dim=0)
        spread = root_mean_square(codes_kd - origin_d)
        away_nd = (z_nd - F.embedding(winners_n, codes_kd)) / spread
        length_n = away_nd.norm(dim=1).clamp(min=torch.finfo(z_nd.dtype).tiny)
        allowed = torch.where(self.reach > 0, OUTLIER * self.reach, torch.finfo(z_nd.dtype).max).to(z_nd)
        near_n = (allowed / length_n).clamp(max=1)
        return Seen((codes_kd - origin_d) / spread, winners_n, away_nd * near_n[:, None], weight_n, spread)

    def _remember_(self, counts_k: Tensor, total: Tensor) -> None:
        """Let the codes' memories fade by this batch, and take it in."""
        self.seen += total.to(torch.int64)
        horizon = (MEMORY_SHARE * self.seen).clamp(min=MIN_MEMORY * len(self.memory))
        kept = torch.exp(-total / horizon)
        self.memory.mul_(kept.to(self.memory)).add_(counts_k.to(self.memory))

    def _parts(self) -> list[Part]:
        return [part for part in self.parts.values() if isinstance(part, Part)]

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.codes.copy_(codes_kd)
        self.memory.fill_(MIN_MEMORY)
        self.reach.zero_()
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
    """``√mean x²``, at any scale of x; 1 where all of it is 0, so that one may divide by it."""
    largest = x_kd.abs().amax()
    unit = torch.where(largest > 0, largest, 1)
    return torch.where(largest > 0, (x_kd / unit).square().mean().sqrt() * unit, 1)


def _scale_free(error: Tensor, seen: Seen) -> Tensor:
    """``s² · error`` with the gradient of ``error / mean away²``, which is the same for latents of any scale."""
    squares_n = seen.away.square().mean(dim=1) * seen.weight
    square, total = sum_over_processes(squares_n.sum(), seen.weight.sum())
    level = (square / total.clamp(min=1)).clamp(min=torch.finfo(square.dtype).tiny ** 0.5)
    value = error.detach()
    return value * seen.spread.square() + (error - value) / level
