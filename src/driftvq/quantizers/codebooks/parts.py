"""What a part that moves a following codebook is, and what it sees of a training step.

Everything is in the codebook's frame: less its origin, and divided by the spread of the codes.

Shape suffixes: n latents, k codes, d dimensions.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn


class Now(NamedTuple):
    """What it is time for in a step.

    Attributes:
        interval: steps between two times at which lost codes are relocated and the drift is judged.
        due: whether this is one of them; a boolean tensor in a compiled graph.
        glance: likewise, whether to judge a drift that is at rest too.
        look: likewise, whether to look at what changes slowly.
    """

    interval: int = 1
    due: Tensor | bool = True
    glance: Tensor | bool = True
    look: Tensor | bool = True


class Seen(NamedTuple):
    """This process's latents beside their codes.

    Attributes:
        codes: in the frame ``(k, d)``.
        winners: the latents' codes ``(n,)``.
        away: how far the latents lie from them, outliers brought near; 0 where a latent does not count ``(n, d)``.
        counted: which latents count, boolean ``(n,)``.
        sums: of ``away`` over the latents that selected each code, and in the last column their number ``(k, d + 1)``.
        now: what it is time for.
        rows: what the drift makes of them, for its loss and its sums, where there is one to follow.
    """

    codes: Tensor
    winners: Tensor
    away: Tensor
    counted: Tensor
    sums: Tensor
    now: Now = Now()
    rows: "Rows | None" = None


class Rows(NamedTuple):
    """A regression's rows: features ``(r, p)``, sums of the displacements ``(r, d)``, number of latents ``(r,)``.

    ``follows`` says whether there is a drift to follow; a boolean tensor where Python cannot know.
    """

    features: Tensor
    away: Tensor
    number: Tensor
    follows: Tensor | bool = True


@dataclass(frozen=True)
class Batch:
    """A batch of all processes, and what the codes remember of those before it.

    Attributes:
        seen: this process's latents.
        step: number of the training step.
        total: latents that count.
        units: sum of the squares of ``away`` in each process ``(r,)``.
        counts, sums: number of the latents that selected each code ``(k,)``, and how far they are away ``(k, d)``.
        memory: latents that each code remembers, this batch's included ``(k,)``; a part may set it.
        shared: what the part itself has summed up.
    """

    seen: Seen
    step: Tensor
    total: Tensor
    units: Tensor
    counts: Tensor
    sums: Tensor
    memory: Tensor
    shared: tuple[Tensor, ...] = ()

    @property
    def unit(self) -> Tensor:
        """Sum of the squares of ``away`` in all processes."""
        return self.units[0] if len(self.units) == 1 else self.units.sum()


class Part(nn.Module):
    """Moves codes, once per training step."""

    training_state: ClassVar[tuple[str, ...]] = ()
    """Buffers that say how training goes on and change nothing in evaluation."""

    def forward(self, moved_kd: Tensor | None, batch: Batch) -> Tensor | None:
        """How far each code goes in this step ``(k, d)``, given how far the parts before let it go; None: nowhere."""
        raise NotImplementedError

    @property
    def trained(self) -> bool:
        """Whether an optimizer trains something in it."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def sums(self, seen: Seen) -> tuple[Tensor, ...]:
        """What the part needs of this process's latents; it is summed over all processes."""
        return ()

    def prepare(self, seen: Seen) -> Seen:
        """Add what the part makes of the latents, once for its loss and its sums."""
        return seen

    def loss(self, seen: Seen, unit: Tensor) -> Tensor:
        """The term by which the part is trained, a mean over dimensions, with the gradient of ``term / unit``."""
        raise NotImplementedError

    def rescale_(self, ratio: Tensor) -> None:
        """The spread is another: what is remembered of distances is so many times as long in its units."""

    def reset_(self) -> None:
        """The codebook was replaced: forget where its codes were going."""

    def readings(self) -> dict[str, float]:
        """For logs."""
        return {}
