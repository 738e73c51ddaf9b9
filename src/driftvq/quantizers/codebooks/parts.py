"""What a part that moves a following codebook is, and what it sees of a training step.

Shape suffixes: n latents, k codes, d dimensions.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn


class Seen(NamedTuple):
    """The latents of this process beside their codes, in units of the codes' spread.

    Attributes:
        standard: the codes less their mean, divided by their spread ``(k, d)``.
        winners: the latents' codes ``(n,)``.
        away: how far the latents lie from them, outliers brought near ``(n, d)``.
        weight: 1 where a latent counts, else 0 ``(n,)``.
        spread: root mean square deviation of the codes from their mean.
    """

    standard: Tensor
    winners: Tensor
    away: Tensor
    weight: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Batch:
    """A batch of all processes, and what the codes remember of those before it.

    Attributes:
        seen: this process's latents.
        latents: the same, in their own units ``(n, d)``.
        step: number of the training step.
        total: latents that count.
        reach: root mean square distance of the latents from their codes, in spreads.
        counts, sums: of the latents that selected each code: ``(k,)`` and ``(k, d)``.
        memory: latents that each code remembers, this batch's included ``(k,)``; a part may set it.
        shared: what the part itself has summed up.
    """

    seen: Seen
    latents: Tensor
    step: Tensor
    total: Tensor
    reach: Tensor
    counts: Tensor
    sums: Tensor
    memory: Tensor
    shared: tuple[Tensor, ...] = ()


class Part(nn.Module):
    """Moves codes ``(k, d)``, once per training step."""

    training_state: ClassVar[tuple[str, ...]] = ()
    """Buffers that say how training goes on and change nothing in evaluation."""

    def forward(self, codes_kd: Tensor, batch: Batch) -> Tensor:
        """The codes afterwards."""
        raise NotImplementedError

    @property
    def trained(self) -> bool:
        """Whether an optimizer trains something in it."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def sums(self, seen: Seen) -> tuple[Tensor, ...]:
        """What the part needs of this process's latents; it is summed over all processes."""
        return ()

    def loss(self, seen: Seen) -> Tensor:
        """The term by which the part is trained, in squared spreads."""
        return seen.away.new_zeros(())

    def reset_(self) -> None:
        """The codebook was replaced: forget where its codes were going."""

    def readings(self) -> dict[str, float]:
        """For logs."""
        return {}
