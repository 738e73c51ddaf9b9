"""What every codebook can do, and what a training step shows it.

Shape suffixes: n latents, k codes, d dimensions.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from driftvq.functional import masked_mse, nearest
from driftvq.quantizers.codebooks.growth import Rule


class Lesson(NamedTuple):
    """What a training step shows: latents ``(n, d)``, their winners ``(n,)``, which of them count, the step's number.

    ``weight`` is 1 where a latent counts and 0 where it is masked; ``step`` is an int64 scalar, the same in every
    process, from which random choices are drawn.
    """

    latents: Tensor
    winners: Tensor
    weight: Tensor
    step: Tensor


class Codebook(nn.Module):
    """Holds K codes; the module's call gives those in use, ``(k, d)``.

    Attributes:
        rows_per_code: parameters and buffers with a row per code, and how each grows with the codebook.
        training_state: buffers that say how training goes on and change nothing in evaluation.
        by_gradient: whether an optimizer moves the codes.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {}
    training_state: ClassVar[tuple[str, ...]] = ()
    by_gradient: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._held: list[nn.Parameter] = []
        """What an optimizer would train if the codebook were not frozen."""

    @abstractmethod
    def forward(self) -> Tensor:
        """The codes in use."""

    @property
    @abstractmethod
    def stored(self) -> Tensor:
        """The tensor from which the codes in use come, with a row per code."""

    @abstractmethod
    def set_(self, codes_kd: Tensor) -> None:
        """Take over a whole codebook."""

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """The nearest codes ``(n,)`` and the term of the loss that trains the codebook: ``mse(sg z, c)``, or none."""
        winners_n = nearest(z_nd, codes_kd)
        if not self.by_gradient:
            return winners_n, z_nd.new_zeros(())
        return winners_n, masked_mse(z_nd.detach(), nn.functional.embedding(winners_n, codes_kd), valid_n)

    def learn_(self, lesson: Lesson) -> None:
        """Move codes by statistics, once per training step."""

    def freeze_(self, frozen: bool) -> None:
        """Let no optimizer move the codes, or let it again; what was fixed before stays so."""
        if frozen:
            self._held += [parameter for parameter in self.parameters() if parameter.requires_grad]
        for parameter in self._held:
            parameter.requires_grad_(not frozen)
        if not frozen:
            self._held = []

    def busyness(self) -> Tensor | None:
        """How much each code is in use ``(k,)``, of any scale; None: unknown."""
        return None

    def check_growth(self) -> None:
        """Refuse to grow where new codes would change the others."""

    def grown_(self) -> None:
        """Bring in line what depends on the number of codes."""

    def readings(self) -> dict[str, float]:
        """What the codebook regulates by itself, after the latest training step; for logs."""
        return {}


def initial_codes(codebook_size: int, dim: int) -> Tensor:
    """Codes uniform in ±1/K, the usual start of a codebook that is not started from latents."""
    return torch.empty(codebook_size, dim).uniform_(-1 / codebook_size, 1 / codebook_size)
