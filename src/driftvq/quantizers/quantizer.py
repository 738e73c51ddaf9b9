"""What every quantizer shares: layout, projections, precision, learning and the age of its codes; and its name."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.names import check_name, positive_int
from driftvq.quantizers.codebooks.base import Lesson
from driftvq.quantizers.codebooks.clock import Clock
from driftvq.quantizers.codebooks.start import KMeansStart
from driftvq.quantizers.distributed import from_first_process, with_whole_parameters, world_size
from driftvq.quantizers.finite import ANY_SCALE, OWN_SCALE, FiniteCheck, finite_rows, is_seen_at_once
from driftvq.quantizers.recomputation import Past, advance_, recomputing
from driftvq.quantizers.steps import Call, Details, LossTerms, QuantizerOutput, Selection, Step, mask_of_lens, project


class Quantizer(nn.Module):
    """Base of all quantizers: maps latents to codes and back.

    A subclass implements :meth:`_select`, and :attr:`codebook` or :meth:`_lookup`; it sees float32 (or float64) latents
    of shape ``(n, codebook_dim)`` and never layouts, masks' shapes or autocast.

    Args:
        dim: channels of the latents.
        codebook_size: number of codes, K.
        codebook_dim: dimension of a code; when it differs from ``dim``, linear layers project in and out.
        channel_first: latents are ``b c …`` (images, audio, video) instead of ``b … c``.

    Attributes:
        code_age: int32 ``(K,)``, training steps since each code was last nearest to a latent (or since the first step).
        step: int64, training steps so far.
    """

    training_state: ClassVar[tuple[str, ...]] = ("code_age", "step")  # says how training goes on, idle in evaluation
    code_age: Tensor
    step: Tensor
    fixed_grid: ClassVar[bool] = False  # whether the codes have a scale that nothing adapts to the latents
    own_scale: ClassVar[bool] = False  # whether codes or scores are near 1 by nature, so that latents must be so too
    level: int | None = None  # which level of a residual this is, from 0, if that decides the scale of a fixed grid
    sees_neighbours = False  # whether what a position gets depends on the positions around it
    indices_per_position = 0  # size of the indices' last dimension; 0: a position has one index and there is none such

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, channel_first: bool = False
    ) -> None:
        super().__init__()
        self.dim = positive_int("dim", dim)
        self.codebook_size = positive_int("codebook_size", codebook_size)
        self.codebook_dim = dim if codebook_dim is None else positive_int("codebook_dim", codebook_dim)
        self.channel_first = channel_first
        projected = self.codebook_dim != dim
        self.project_in = nn.Linear(dim, self.codebook_dim) if projected else nn.Identity()
        self.project_out = nn.Linear(self.codebook_dim, dim) if projected else nn.Identity()
        self.register_buffer("code_age", torch.zeros(codebook_size, dtype=torch.int32))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self._agreed = False
        self._check_finite = FiniteCheck()
        self._past = Past()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lens: Tensor | None = None,
        freeze: bool = False,
        levels: int | None = None,
    ) -> QuantizerOutput:
        """Quantize latents.

        Args:
            x: ``b n d``, ``b d`` or, with ``channel_first``, ``b c h w`` (any number of positions).
            mask: boolean, of the positions' shape; where it is False the index is -1, the output 0, and nothing counts
                in the loss or moves a code.
            lens: instead of a mask, how many positions of each sequence ``b n d`` count: integers ``(b,)``.
            freeze: in training, let this call move no code, by statistics or by gradient, nor count as a step.
            levels: where there are any, how many to use in this call; the others neither act, learn nor have an index.

        Returns ``quantized`` like x, int64 ``indices`` of the positions' shape, and the scalar ``loss``.

        Latents that are NaN or infinite are refused: at once on the CPU, elsewhere by the next call. Until then they
        move no code and are NaN in ``quantized``. A compiled graph does the same and never refuses them. Refused on the
        CPU are also latents whose squares have no finite sum, and those far from a scale that the codes have by nature.
        """
        return self._quantize(x, mask, lens, freeze, levels)[0]

    @with_whole_parameters
    def details(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        lens: Tensor | None = None,
        freeze: bool = False,
        levels: int | None = None,
    ) -> Details:
        """What :meth:`forward` does, learning included, with the loss's terms and all else behind its result."""
        return self._describe(*self._quantize(x, mask, lens, freeze, levels))

    @with_whole_parameters
    def indices_to_codes(self, indices: Tensor) -> Tensor:
        """What ``forward`` gave for these indices, in the same layout; index -1 gives zeros."""
        flat, shape = self._flatten_indices(indices)
        return self._unflatten(self._decode(flat, shape), shape)

    get_output_from_indices = indices_to_codes  # vector-quantize-pytorch's name

    @with_whole_parameters
    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Codes before the output projection, channel last, as vector-quantize-pytorch means them."""
        flat, shape = self._flatten_indices(indices)
        return torch.where(any_valid(flat), self._lookup_at(flat, shape), 0).reshape(*shape, self.codebook_dim)

    @property
    def sizes_per_index(self) -> tuple[int, ...]:
        """Codes that each index of a position chooses from."""
        return (self.codebook_size,)

    @property
    def books_per_index(self) -> tuple[int, ...]:
        """The number of the codebook that each index of a position chooses from; a shared one has one number."""
        return tuple(range(len(self.sizes_per_index)))

    def choices_per_index(self, indices: Tensor) -> list[Tensor]:
        """What was chosen at each index, flat and once, though positions that share a choice repeat it."""
        return list(indices.reshape(-1, max(1, self.indices_per_position)).unbind(1))

    @property
    def term_weights(self) -> tuple[float, float]:
        """By how much the loss counts the terms ``commitment`` and ``codebook``."""
        return float(getattr(self, "commitment_weight", 0.0)), 1.0

    def recent_usage(self, steps: int = 100) -> float:
        """Share of codes selected within the last ``steps`` training steps, over all processes."""
        return (self.code_age < self.step.clamp(max=steps)).sum().item() / len(self.code_age)

    def readings(self) -> dict[str, float]:
        """What the quantizer regulates by itself, as it stands after the latest training step; for logs."""
        return {}

    def refine_(self, level: int) -> None:
        """Serve as this level of a residual: a fixed grid becomes finer, a codebook finds its scale by itself."""
        self.level = level if self.fixed_grid else None

    @property
    def leaves_out(self) -> bool:
        """Whether latents that are not finite move nothing, without a mask that costs launches."""
        return False

    @property
    def codebook(self) -> Tensor:
        """The codebook in use, ``(codebook_size, codebook_dim)``."""
        return self._lookup(torch.arange(self.codebook_size, device=self.code_age.device))

    @abstractmethod
    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        """Codes ``(n, codebook_dim)``, indices ``(n,)`` or ``(n, q)``, the loss, and what there is to learn."""

    def _lookup(self, indices: Tensor) -> Tensor:
        """Codes of indices ``(n,)`` or ``(n, q)``, before the output projection; a row of -1 may give anything."""
        return F.embedding(indices.clamp(min=0), self.codebook)

    def _lookup_at(self, indices: Tensor, positions: torch.Size) -> Tensor:
        """The same where neighbours matter."""
        return self._lookup(indices)

    def _decode(self, indices: Tensor, positions: torch.Size) -> Tensor:
        """What :meth:`_run` gave for flat indices ``(n,)`` or ``(n, q)`` of these positions: ``(n, dim)``."""
        with torch.autocast(indices.device.type, enabled=False):
            codes_nd = project(self.project_out, self._lookup_at(indices, positions))
        return torch.where(any_valid(indices), codes_nd, 0)

    def _quantize(
        self, x: Tensor, mask: Tensor | None, lens: Tensor | None, freeze: bool, levels: int | None
    ) -> tuple[QuantizerOutput, Step]:
        """Check, flatten, quantize, learn."""
        levels = self._checked_levels(levels)
        self._check_latents(x, mask)
        if lens is not None:
            mask = mask_of_lens(x, mask, lens, self.channel_first)
        channel_last = x.movedim(1, -1) if self.channel_first else x
        x_nd, shape, valid_n = channel_last.reshape(-1, self.dim), channel_last.shape[:-1], None
        if mask is not None:
            valid_n = mask.flatten()
            x_nd = torch.where(valid_n[:, None], x_nd, 0)
        self._check_finite(x_nd, self._scale)
        if self.training and world_size() > 1 and not self._agreed:
            self._agree_()
        trains, compiling = self.training and not freeze, torch.compiler.is_compiling()
        # Where Python cannot know which latents are finite, and the method has to be told.
        unseen = trains and not is_seen_at_once(x_nd) and (compiling or not self.leaves_out)
        finite_n = finite_rows(x_nd) if unseen else None
        if finite_n is not None:
            x_nd = torch.where(finite_n[:, None], x_nd, 0)
            valid_n = finite_n if valid_n is None else finite_n & valid_n
        with torch.autocast(x.device.type, enabled=False):
            step = self._run(x_nd, Call(shape, valid_n, trains, trains and not recomputing(), levels))
            if step.call.learns:
                self._teach_(step)
        if finite_n is not None:  # nothing is hidden from whoever reads the result
            step = step._replace(quantized=torch.where(finite_n[:, None], step.quantized, torch.nan))
        return self._output(step, x.dtype), step

    def _checked_levels(self, levels: int | None) -> int | None:
        """A number of levels that there are, here or in each part."""
        if levels is not None:
            raise ValueError(f"{type(self).__name__} has no levels, got levels={levels!r}")
        return None

    def _scale(self) -> tuple[float, float]:
        """Magnitudes of latents between which the method can tell them apart."""
        return OWN_SCALE if self.own_scale or self.fixed_grid else ANY_SCALE

    def _run(self, x_nd: Tensor, call: Call) -> Step:
        """Project, select and project back, without learning."""
        z_nd = project(self.project_in, x_nd)
        selection = self._select(z_nd, call)
        quantized_nd, indices = project(self.project_out, selection.quantized), selection.indices
        if call.valid is not None:
            quantized_nd = torch.where(call.valid[:, None], quantized_nd, 0)
            indices = torch.where(call.valid if indices.ndim == 1 else call.valid[:, None], indices, -1)
        return Step(quantized_nd, indices, z_nd, selection, call)

    def _output(self, step: Step, dtype: torch.dtype) -> QuantizerOutput:
        shape = step.call.positions
        quantized = self._unflatten(step.quantized.to(dtype), shape)
        return QuantizerOutput(quantized, step.indices.reshape(*shape, *step.indices.shape[1:]), step.selection.loss)

    def _describe(self, output: QuantizerOutput, step: Step) -> Details:
        """A step in the layout of a call, and those of the inner quantizers."""
        shape, selection = step.call.positions, step.selection
        latents, codes = (flat.reshape(*shape, flat.shape[1]) for flat in (step.latents, selection.quantized))
        inner = zip(self._inner(), selection.parts, strict=False)
        parts = (each._describe(each._output(part, part.quantized.dtype), part) for each, part in inner)
        return Details(*output, self._terms(selection), latents, codes, tuple(parts))

    def _terms(self, selection: Selection) -> LossTerms:
        """The terms of the loss as numbers, 0 where it has none."""
        zero, terms = selection.loss.new_zeros(()), selection.terms or {}
        return LossTerms(*(terms.get(name, zero) for name in LossTerms._fields))

    def _inner(self) -> Sequence["Quantizer"]:
        """The quantizers that ``Selection.parts`` speaks of, in its order."""
        return ()

    def _lesson(self, z_nd: Tensor, winners: Tensor, valid_n: Tensor | None) -> Lesson:
        return Lesson(z_nd.detach(), winners, valid_n, self.step)

    @torch.no_grad()
    def _teach_(self, step: Step) -> None:
        """What a training step changes by itself, once per step."""
        if (lesson := step.selection.lesson) is not None:
            self.code_age.add_(1).mul_(self._count_(lesson) == 0)
        advance_(self.step)

    def _count_(self, lesson: Lesson) -> Tensor:
        """How many latents selected each code ``(k,)``; a method with more to learn does it here."""
        return lesson.counts(self.codebook_size)

    def _agree_(self) -> None:
        """Once, in a process group: all processes take over the buffers of the first."""
        for part in self.modules():
            if isinstance(part, Quantizer):
                part._check_sharding()
            if isinstance(part, Clock):
                part.pack_()
        for buffer in self.buffers():
            buffer.copy_(from_first_process(buffer))
        for part in self.modules():
            if isinstance(part, Clock | KMeansStart):
                part.agree_()
        self._agreed = True

    def _check_sharding(self) -> None:
        """Refuse to train what FSDP has sharded and the quantizer moves by itself."""

    def _unflatten(self, x_nd: Tensor, shape: torch.Size) -> Tensor:
        x = x_nd.reshape(*shape, self.dim)
        return x.movedim(-1, 1).contiguous() if self.channel_first else x

    def _flatten_indices(self, indices: Tensor) -> tuple[Tensor, torch.Size]:
        """Checked indices of all positions, and the positions' shape."""
        indices = self._check_indices(indices)
        if self.indices_per_position:
            return indices.flatten(end_dim=-2), indices.shape[:-1]
        return indices.flatten(), indices.shape

    def _check_latents(self, x: Tensor, mask: Tensor | None) -> None:
        """Refuse what are not latents of so many channels, and a mask that does not fit them."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"latents must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
        if x.is_meta or x.is_nested or x.layout != torch.strided:
            kind = "nested" if x.is_nested else x.layout
            raise ValueError(f"latents must be a dense tensor that has values, got a {kind} one on {x.device}")
        axis, layout = (1, "b c …") if self.channel_first else (-1, "b … c")
        if x.ndim < 2 or x.shape[axis] != self.dim:
            hint = "" if self.channel_first else "; for b c h w latents set channel_first=True"
            raise ValueError(f"latents must be {layout} with c = {self.dim}, got shape {tuple(x.shape)}{hint}")
        if mask is None:
            return
        positions = (x.shape[0], *x.shape[2:]) if self.channel_first else tuple(x.shape[:-1])
        if not isinstance(mask, Tensor) or mask.device != x.device:
            got = f"one on {mask.device}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"mask must be a boolean tensor on {x.device}, where the latents are, got {got}")
        if mask.dtype != torch.bool or tuple(mask.shape) != positions:
            raise ValueError(f"mask must be boolean of shape {positions}, got {mask.dtype} of {tuple(mask.shape)}")

    def _check_indices(self, indices: Tensor) -> Tensor:
        """Refuse what are not indices of codes, or -1; of any type of integers, then int64."""
        if not isinstance(indices, Tensor) or indices.is_meta:
            got = "one on 'meta'" if isinstance(indices, Tensor) else type(indices).__name__
            raise ValueError(f"indices must be a tensor of integers that has values, got {got}")
        if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise ValueError(f"indices must be integers, got {indices.dtype}")
        indices = indices.long()
        if torch.compiler.is_compiling() or indices.numel() == 0:
            return indices
        low, high, last = int(indices.min()), int(indices.max()), self.codebook_size - 1
        if low < -1 or high > last:
            raise ValueError(f"indices must lie between -1 (masked) and {last}, got {low if low < -1 else high}")
        return indices

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; statistics that were loaded in half precision are raised to float32."""
        for module, name, buffer in self._statistics():
            module._buffers[name] = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Half precision is for codes and networks: statistics stay in float32, since it cannot count them."""
        before = self._statistics()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, name, buffer in before:
            applied = getattr(module, name)
            if applied.dtype in (torch.float16, torch.bfloat16):
                module._buffers[name] = buffer.to(applied.device)
        return self

    def _statistics(self) -> list[tuple[nn.Module, str, Tensor]]:
        """The floating-point buffers that say how training goes on."""
        return [
            (module, name, buffer)
            for module in self.modules()
            for name in getattr(module, "training_state", ())
            if (buffer := module._buffers.get(name)) is not None and buffer.is_floating_point()
        ]


def any_valid(indices: Tensor) -> Tensor:
    """Which positions have a code, ``(n, 1)``."""
    rows = indices.flatten(1) if indices.ndim > 1 else indices[:, None]
    return (rows >= 0).any(dim=1, keepdim=True)


QUANTIZERS: dict[str, type[Quantizer]] = {}
"""Every registered quantizer; the contract tests run on each of them."""

Class = TypeVar("Class", bound=type[Quantizer])


def register(name: str) -> Callable[[Class], Class]:
    """Make a quantizer known under a name."""

    def add(cls: Class) -> Class:
        QUANTIZERS[name] = cls
        return cls

    return add


def make_quantizer(name: str, **options: Any) -> Quantizer:
    """One of :data:`QUANTIZERS` by name, e.g. ``make_quantizer("ns_vq", dim=64, codebook_size=1024)``."""
    return QUANTIZERS[check_name("quantizer", name, QUANTIZERS)](**options)


def argument_names(cls: type[Quantizer], inner: str | None = None) -> list[str]:
    """What a constructor takes by name, and for a composite what the quantizers inside, by default its own, take."""
    names: dict[str, None] = {}
    default: str | None = None
    for init in (vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)):
        own = list(inspect.signature(init).parameters.values())[1:]
        takes_more = any(each.kind is each.VAR_KEYWORD for each in own)
        if takes_more or default is None:  # else it is the base of a composite, which names its arguments itself
            names.update(dict.fromkeys(each.name for each in own if each.kind is not each.VAR_KEYWORD))
            default = next((each.default for each in own if each.name == "quantizer"), default)
        if not takes_more:
            break
    if default is not None:
        names.update(dict.fromkeys(argument_names(QUANTIZERS[inner or default])))
    return list(names)
