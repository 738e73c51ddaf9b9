"""What ResidualVQ and GroupedVQ share: several quantizers that act as one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from driftvq.quantizers.base import Quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.registry import make_quantizer

MakeQuantizer = Callable[..., Quantizer]


class CompositeQuantizer(Quantizer):
    """Several quantizers, each with an index per position.

    Args:
        dim, codebook_size, codebook_dim, channel_first: see :class:`driftvq.quantizers.base.Quantizer`.
        parts: how many quantizers.
        part_dim: dimension that each works on.
        quantizer: name of a registered quantizer, or what makes one from ``dim``, ``codebook_size`` and options.
        shared_codebook: one codebook serves all.
        options: arguments of the inner quantizers.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None,
        channel_first: bool,
        *,
        parts: int,
        part_dim: int,
        quantizer: str | MakeQuantizer,
        shared_codebook: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, channel_first)
        self.indices_per_position = parts
        self.shared_codebook = shared_codebook
        make = partial(make_quantizer, quantizer) if isinstance(quantizer, str) else quantizer
        made = [
            make(dim=part_dim, codebook_size=codebook_size, **options) for _ in range(1 if shared_codebook else parts)
        ]
        self.quantizers = nn.ModuleList(made)

    def part(self, number: int) -> Quantizer:
        """The quantizer of an index's place."""
        quantizer = self.quantizers[0 if self.shared_codebook else number]
        assert isinstance(quantizer, Quantizer)
        return quantizer

    @property
    def codebook(self) -> Tensor:
        """The codebooks in use, one per index of a position: ``(q, k, d)``."""
        return torch.stack([self.part(number).codebook for number in range(self.indices_per_position)])

    @property
    def freeze_codebook(self) -> bool:
        """While True no code moves, in any of the codebooks."""
        return all(getattr(quantizer, "freeze_codebook", True) for quantizer in self.quantizers)

    @freeze_codebook.setter
    def freeze_codebook(self, frozen: bool) -> None:
        for quantizer in self.quantizers:
            if hasattr(quantizer, "freeze_codebook"):
                setattr(quantizer, "freeze_codebook", frozen)  # noqa: B010 - not every quantizer has one

    @torch.no_grad()
    def grow_(self, new_size: int, optimizer: Optimizer | None = None) -> None:
        """Let each codebook grow to so many codes: :meth:`driftvq.quantizers.codebook.CodebookQuantizer.grow_`."""
        growing = [quantizer for quantizer in self.quantizers if isinstance(quantizer, CodebookQuantizer)]
        if len(growing) < len(self.quantizers):
            raise ValueError(f"{type(self.quantizers[0]).__name__} has no codebook that could grow")
        for quantizer in growing:
            quantizer.check_growth(new_size)
        for quantizer in growing:
            quantizer.grow_(new_size, optimizer)
        self.codebook_size, self.code_age = new_size, self.code_age.new_zeros(new_size)

    def recent_usage(self, steps: int = 100) -> float:
        """Share of codes selected within the last ``steps`` training steps, averaged over the codebooks."""
        shares = [self.part(number).recent_usage(steps) for number in range(self.indices_per_position)]
        return sum(shares) / len(shares)

    def readings(self) -> dict[str, float]:
        """Those of the inner quantizers, averaged."""
        parts = [self.part(number).readings() for number in range(self.indices_per_position)]
        return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
