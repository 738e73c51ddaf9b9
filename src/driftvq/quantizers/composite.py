"""What quantizers that are made of several others share."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from driftvq.names import check_name, positive_int
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.base import Lesson
from driftvq.quantizers.quantizer import QUANTIZERS, Quantizer, argument_names, make_quantizer
from driftvq.quantizers.recomputation import advance_
from driftvq.quantizers.steps import LossTerms, Selection, Step

MakeQuantizer = Callable[..., Quantizer]


class CompositeQuantizer(Quantizer):
    """Several quantizers that act as one, each with an index per position, or several if it is a composite itself.

    Indices have one more dimension: those of the first quantizer, of the second and so on.
    """

    def _contain(
        self, part_dim: int, sizes: Sequence[int], make: str | MakeQuantizer, shared: bool, each: list[dict[str, Any]]
    ) -> None:
        """Make quantizers of ``part_dim`` channels, one for each size with its options; shared, one serves for all."""
        if shared and len(set(sizes)) > 1:
            raise ValueError(f"a shared codebook has one codebook_size, got {tuple(sizes)}")
        if isinstance(make, str):
            known = argument_names(type(self), check_name("quantizer", make, QUANTIZERS))
            for name in each[0]:
                check_name(f"argument of {type(self).__name__} over {make!r}", name, known)
            make = partial(make_quantizer, make)
        wanted = list(zip(sizes, each, strict=True))[: 1 if shared else None]
        made = [make(dim=part_dim, codebook_size=size, **options) for size, options in wanted]
        self.shared_codebook, self.quantizers, self.parts = shared, nn.ModuleList(made), len(sizes)
        for module in self.quantizers.modules() if shared else ():
            if isinstance(module, Quantizer):
                module._past.most *= self.parts
        self.sees_neighbours = self.part(0).sees_neighbours
        self.indices_per_part = max(1, self.part(0).indices_per_position)
        self.indices_per_position = self.parts * self.indices_per_part

    def part(self, number: int) -> Quantizer:
        """The quantizer of this number, from 0."""
        quantizer = self.quantizers[0 if self.shared_codebook else number]
        assert isinstance(quantizer, Quantizer)
        return quantizer

    def refine_(self, level: int) -> None:
        for quantizer in self._inner():
            quantizer.refine_(level)

    @property
    def sizes_per_index(self) -> tuple[int, ...]:
        return tuple(size for quantizer in self._inner() for size in quantizer.sizes_per_index)

    @property
    def books_per_index(self) -> tuple[int, ...]:
        books: tuple[int, ...] = ()
        for quantizer in self._inner():
            first = 0 if self.shared_codebook else len(set(books))
            books += tuple(first + book for book in quantizer.books_per_index)
        return books

    def choices_per_index(self, indices: Tensor) -> list[Tensor]:
        own = zip(self._inner(), self._columns(self._check_indices(indices)), strict=False)
        return [choice for quantizer, columns in own for choice in quantizer.choices_per_index(columns)]

    @property
    def codebooks(self) -> tuple[Tensor, ...]:
        """The codebook of each quantizer."""
        return tuple(quantizer.codebook for quantizer in self._inner())

    @property
    def codebook(self) -> Tensor:
        """The codebooks in use, one per quantizer, ``(q, k, d)``; of different sizes they are in ``codebooks`` only."""
        shapes = {tuple(codes.shape) for codes in self.codebooks}
        if len(shapes) > 1:
            raise ValueError(f"codebooks of different shapes are in `codebooks`, not in `codebook`: {sorted(shapes)}")
        return torch.stack(self.codebooks)

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
        for quantizer in self.check_growth(new_size):
            quantizer.grow_(new_size, optimizer)
        self.codebook_size, self.code_age = new_size, torch.zeros(new_size, dtype=torch.int32, device=self.step.device)

    def check_growth(self, new_size: int) -> list["CodebookQuantizer | CompositeQuantizer"]:
        """Refuse what :meth:`grow_` cannot do; the quantizers that it is about."""
        growing = [part for part in self.quantizers if isinstance(part, CodebookQuantizer | CompositeQuantizer)]
        if len(growing) < len(self.quantizers):
            raise ValueError(f"{type(self.quantizers[0]).__name__} has no codebook that could grow")
        for quantizer in growing:
            quantizer.check_growth(new_size)
        return growing

    def recent_usage(self, steps: int = 100) -> float:
        """Averaged over the codebooks."""
        shares = [quantizer.recent_usage(steps) for quantizer in self._inner()]
        return sum(shares) / len(shares)

    def readings(self) -> dict[str, float]:
        """Averaged over the inner quantizers."""
        parts = [quantizer.readings() for quantizer in self._inner()]
        return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}

    def _scale(self) -> tuple[float, float]:
        return self.part(0)._scale()

    @property
    def leaves_out(self) -> bool:
        return all(quantizer.leaves_out for quantizer in self._inner())

    def _inner(self) -> list[Quantizer]:
        return [self.part(number) for number in range(self.parts)]

    @torch.no_grad()
    def _teach_(self, step: Step) -> None:
        """Let each inner quantizer learn once: a shared one from all its parts together."""
        advance_(self.step)
        steps = step.selection.parts + step.selection.absent
        for quantizer, part in zip(self._inner(), (joined(steps),) if self.shared_codebook else steps, strict=False):
            quantizer._teach_(part)

    def _terms(self, selection: Selection) -> LossTerms:
        """Each term over the parts as the loss is: here the sum."""
        parts = zip(self._inner(), selection.parts, strict=False)
        each = [quantizer._terms(step.selection) for quantizer, step in parts]
        return LossTerms(*(torch.stack(terms).sum() for terms in zip(*each, strict=True)))

    def _lookup(self, indices_nq: Tensor) -> Tensor:
        return self._lookup_at(indices_nq, indices_nq.shape[:1])

    def _columns(self, indices_nq: Tensor) -> list[Tensor]:
        """The indices of each quantizer, as it takes them: ``(n,)``, or ``(n, q)`` for a composite."""
        columns = indices_nq.split(self.indices_per_part, dim=-1)
        return list(columns) if self.part(0).indices_per_position else [column[..., 0] for column in columns]

    def _check_indices(self, indices: Tensor) -> Tensor:
        if isinstance(indices, Tensor):
            self._check_width(indices)
        indices = super()._check_indices(indices)
        columns = zip(self._inner(), self._columns(indices), strict=False)
        each = ((part.sizes_per_index, own.shape[-1] if part.indices_per_position else 1) for part, own in columns)
        sizes = tuple(size for own, width in each for size in own[:width])
        if len(set(sizes)) > 1 and not torch.compiler.is_compiling():
            wrong = torch.stack([indices[..., place] >= size for place, size in enumerate(sizes)], dim=-1)
            if wrong.any():
                raise ValueError(f"indices must be less than {sizes} at their places, got {indices[wrong][0].item()}")
        return indices

    def _checked_levels(self, levels: int | None) -> int | None:
        return self.part(0)._checked_levels(levels)

    def _check_width(self, indices: Tensor) -> None:
        """Refuse another number of indices per position."""
        width, shape = self.indices_per_position, tuple(indices.shape)
        if shape[-1:] != (width,):
            raise ValueError(f"indices must end in a dimension of {width}, got shape {shape}")


def side_by_side(indices: Sequence[Tensor]) -> Tensor:
    """The indices of all parts, ``(n, q)``."""
    return torch.cat([own[:, None] if own.ndim == 1 else own for own in indices], dim=1)


def joined(steps: Sequence[Step]) -> Step:
    """What several steps of one quantizer have to teach it, as if they were one."""
    lessons = [step.selection.lesson for step in steps if step.selection.lesson is not None]
    parts = tuple(joined(inner) for inner in zip(*(step.selection.parts for step in steps), strict=True))
    selection = steps[0].selection._replace(lesson=Lesson.joined(lessons) if lessons else None, parts=parts)
    return steps[0]._replace(selection=selection)


def is_several(value: object) -> TypeGuard[Sequence[int]]:
    """Whether a value has a number for each part; a text is a sequence too, but of no numbers."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def per_part(name: str, value: int | Sequence[int], parts: int) -> tuple[int, ...]:
    """A number for each part: one for all, or a sequence of them."""
    values = tuple(value) if is_several(value) else (value,) * parts
    if len(values) != parts:
        raise ValueError(f"{name} must be one number or {parts}, one for each quantizer; got {values}")
    return tuple(positive_int(name, each) for each in values)
