"""What a part that moves a following codebook is, and what it sees of a training step.

Everything is in the codebook's frame: less its origin, and divided by the spread of the codes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from driftvq.quantizers.codebooks.base import Stateful


class Now(NamedTuple):
    """What it is time for in a step."""

    interval: int = 1  # steps between two times at which lost codes are relocated and the drift is judged
    due: Tensor | bool = True  # whether this is one of them; a boolean tensor in a compiled graph
    glance: Tensor | bool = True  # likewise, whether to judge a drift that is at rest too
    look: Tensor | bool = True  # likewise, whether to look at what changes slowly


class Seen(NamedTuple):
    """This process's latents beside their codes."""

    codes: Tensor  # in the frame ``(k, d)``
    winners: Tensor  # the latents' codes ``(n,)``
    away: Tensor  # how far the latents lie from them, outliers brought near; 0 where a latent does not count ``(n, d)``
    counted: Tensor  # which latents count, boolean ``(n,)``
    sums: Tensor  # of ``away`` over the latents that selected each code, the last column their number ``(k, d + 1)``
    now: Now = Now()
    rows: "Rows | None" = None  # what the drift makes of them, for its loss and its sums, where there is one to follow


class Rows(NamedTuple):
    """The rows of a regression."""

    features: Tensor  # ``(r, p)``
    away: Tensor  # sums of the displacements ``(r, d)``
    number: Tensor  # of latents ``(r,)``
    follows: Tensor | bool = True  # whether there is a drift to follow; a boolean tensor where Python cannot know


@dataclass(frozen=True)
class Batch:
    """A batch of all processes, and what the codes remember of those before it."""

    seen: Seen  # this process's latents
    step: Tensor  # number of the training step
    total: Tensor  # latents that count
    units: Tensor  # sum of the squares of ``away`` in each process ``(r,)``
    counts: Tensor  # number of the latents that selected each code ``(k,)``
    sums: Tensor  # how far these are away ``(k, d)``
    memory: Tensor  # latents that each code remembers, this batch's included ``(k,)``; a part may set it
    shared: tuple[Tensor, ...] = ()  # what the part itself has summed up

    @property
    def unit(self) -> Tensor:
        """Sum of the squares of ``away`` in all processes."""
        return self.units[0] if len(self.units) == 1 else self.units.sum()


class Part(Stateful):
    """Moves codes, once per training step."""

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
