"""What every codebook can do, and what a training step shows it."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import masked_mse, nearest
from driftvq.quantizers.codebooks.growth import Rule, between
from driftvq.quantizers.distributed import by_process, sum_over_processes
from driftvq.quantizers.finite import finite_rows, is_seen_at_once


def row_weights(x_nd: Tensor, valid_n: Tensor | None) -> Tensor:
    """1 where a latent counts, else 0, ``(n,)``."""
    return x_nd.new_ones(x_nd.shape[0]) if valid_n is None else valid_n.to(x_nd.dtype)


class Match(NamedTuple):
    """The code of each latent."""

    winners: Tensor  # the nearest codes ``(n,)``
    codes: Tensor  # the same as vectors ``(n, d)``
    loss: Tensor | None = None  # the term that trains the codebook, if a gradient does
    seen: Any = None  # what the codebook has made of the latents already and needs again to learn from them
    valid: Tensor | None = None  # which latents count, boolean ``(n,)``; None: all


class Lesson(NamedTuple):
    """What a training step shows; ``valid`` and ``seen`` are those of :class:`Match`."""

    latents: Tensor  # ``(n, d)``
    winners: Tensor  # the codes that learn from them ``(n,)``
    valid: Tensor | None
    step: Tensor  # its number, an int64 scalar, the same in every process: random choices are drawn from it
    seen: Any = None
    teaches: bool = True  # whether codes move by it; latents that made the codebook have nothing more to teach

    @property
    def weight(self) -> Tensor:
        """The :func:`row_weights`."""
        return row_weights(self.latents, self.valid)

    @classmethod
    def joined(cls, lessons: "Sequence[Lesson]") -> "Lesson":
        """Several lessons of one step as one."""
        latents, winners, valid, steps, _, teaches = zip(*lessons, strict=True)
        masks = None if all(mask is None for mask in valid) else torch.cat([lesson.weight > 0 for lesson in lessons])
        return cls(torch.cat(latents), torch.cat(winners), masks, steps[0], teaches=all(teaches))

    def counts(self, codebook_size: int) -> Tensor:
        """How many latents of all processes each code was nearest to ``(k,)``."""
        return sum_over_processes(self.latents.new_zeros(codebook_size).index_add_(0, self.winners, self.weight))[0]

    def sums(self, codebook_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Counts, sums of these latents ``(k, d)``, how many each process has ``(r,)``: of those that are finite."""
        rows_nv = torch.cat([self.latents, self.latents.new_ones(len(self.latents), 1)], dim=1)
        valid_n = self.valid
        if valid_n is None and not is_seen_at_once(self.latents):
            valid_n = finite_rows(self.latents)
        if valid_n is not None:
            rows_nv = torch.where(valid_n[:, None], rows_nv, 0)
        sums_kv = rows_nv.new_zeros(codebook_size, rows_nv.shape[1]).index_add_(0, self.winners, rows_nv)
        sums_kv, latents_r = sum_over_processes(sums_kv, by_process(rows_nv[:, -1].sum()))
        return sums_kv[:, -1], sums_kv[:, :-1], latents_r


class Stateful(nn.Module):
    """A module with buffers that change as training goes on, and numbers for logs."""

    training_state: ClassVar[tuple[str, ...]] = ()  # buffers that say how training goes on, idle in evaluation

    def readings(self) -> dict[str, float]:
        """What it regulates by itself, as it stands after the latest training step; for logs."""
        return {}

    if TYPE_CHECKING:  # what no line assigns was registered as a buffer

        def __getattr__(self, name: str) -> Tensor: ...


class Codebook(Stateful):
    """Holds K codes; the module's call gives those in use, ``(k, d)``."""

    rows_per_code: ClassVar[dict[str, Rule]] = {}  # parameters and buffers with a row per code, and how each grows
    has_loss: ClassVar[bool] = False  # whether a term of the loss draws the codes to the latents
    takes_choices: ClassVar[bool] = True  # whether `match` can be told the codes instead of searching the nearest
    leaves_out: bool = False  # whether latents that are not finite move nothing, without a mask

    def __init__(self) -> None:
        super().__init__()
        self._held: set[str] = set()  # parameters that were trained before the codebook was frozen

    def forward(self) -> Tensor:
        """The codes in use."""
        return self.stored

    @property
    def stored(self) -> Tensor:
        """The tensor from which the codes in use come, with a row per code."""
        return self.codes

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        """Take over a whole codebook."""
        self.stored.copy_(codes_kd)

    def settle_(self, codes_kd: Tensor) -> None:
        """Take over codes that are to be in use exactly as they are from now on."""
        self.set_(codes_kd)

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        """The nearest codes, and the term of the loss that trains them where a gradient does: ``mse(sg z, c)``.

        With ``choices_n`` the codes are given and not searched.
        """
        winners_n = nearest(z_nd, codes_kd) if choices_n is None else choices_n
        codes_nd = F.embedding(winners_n, codes_kd)
        return Match(winners_n, codes_nd, masked_mse(z_nd.detach(), codes_nd, valid_n) if self.has_loss else None)

    def learn_(self, lesson: Lesson) -> Tensor:
        """Move codes by statistics, once per training step; returns the :meth:`Lesson.counts`."""
        return lesson.counts(len(self.stored))

    def freeze_(self, frozen: bool) -> None:
        """Let no optimizer move the codes, or let it again; what was fixed before stays so."""
        if frozen:
            self._held |= {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        for name, parameter in self.named_parameters():
            if name in self._held:
                parameter.requires_grad_(not frozen)
                parameter.grad = None if frozen else parameter.grad  # at 0 an optimizer's momentum would move it on
        if not frozen:
            self._held = set()

    def busyness(self) -> Tensor | None:
        """How much each code is in use ``(k,)``, of any scale; None: unknown."""
        return None

    def check_growth(self) -> None:
        """Refuse to grow where new codes would change the others."""

    def grown_(self) -> None:
        """Bring in line what depends on the number of codes."""


def initial_codes(codebook_size: int, dim: int) -> Tensor:
    """Codes uniform in ±1/K, the usual start of a codebook that is not started from latents."""
    return torch.empty(codebook_size, dim).uniform_(-1 / codebook_size, 1 / codebook_size)


def change_where_(condition: Tensor, tensors: Iterable[Tensor], change: Callable[[], object]) -> None:
    """Let these tensors change where a boolean scalar says so, without a branch or a host read.

    All of them are written, so none may be one that a graph made before still needs for its gradient.
    """
    before = [(tensor, tensor.clone()) for tensor in tensors]
    change()
    for tensor, kept in before:
        tensor.copy_(torch.where(condition, tensor, kept))


class TrainedCodes(Codebook):
    """Codes as a parameter: the gradient of ``mse(sg z, c)`` moves those that were selected."""

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between}
    has_loss: ClassVar[bool] = True

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(initial_codes(codebook_size, dim))


class UnitCodes(TrainedCodes):
    """Trained codes of unit length, ``ĉ = c / |c|``, which start in random directions."""

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__(codebook_size, dim)
        self.set_(F.normalize(torch.randn(codebook_size, dim), dim=1))

    def forward(self) -> Tensor:
        # The start may write into the codes before the gradient of an earlier call is computed.
        return F.normalize(self.codes.clone() if self.training else self.codes, dim=1)
