"""Residual quantization (Zeghidour et al., 2021: SoundStream)."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from driftvq.names import in_range, one_of, positive_int
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.composite import CompositeQuantizer, MakeQuantizer, is_several, per_part, side_by_side
from driftvq.quantizers.distributed import with_whole_parameters, world_size
from driftvq.quantizers.quantizer import Quantizer, register
from driftvq.quantizers.recomputation import recomputing
from driftvq.quantizers.steps import Call, Selection, Step


@register("residual_vq")
class ResidualVQ(CompositeQuantizer):
    """Each quantizer quantises what the ones before it left over; the codes add up.

    ``r_0 = z``,  ``r_{j+1} = r_j - sg(q_j)``,  ``quantized = Σ_j q_j``,  ``loss = Σ_j loss_j``

    Indices have one more dimension, the levels: ``b n q`` or ``b h w q``; the first few of them decode too. The encoder
    receives the mean of the levels' gradients: with straight-through inside, the decoder's gradient once.

    >>> vq = ResidualVQ(dim=64, codebook_size=1024, num_quantizers=8)
    >>> coarse = vq(torch.randn(2, 50, 64), levels=3)
    >>> coarse.indices.shape, vq.indices_to_codes(coarse.indices).shape
    (torch.Size([2, 50, 3]), torch.Size([2, 50, 64]))

    Args:
        codebook_size: codes per level, or a sequence of them, one for each level.
        codebook_dim: so many dimensions between one projection before the first level and one after the last; or a
            sequence, one for each level: then each has projections of its own, as in DAC.
        num_quantizers: levels; by default as many as the sequences are long, else 4.
        quantizer: name of the inner quantizer, or what makes one.
        shared_codebook: one codebook serves all levels.
        quantizer_dropout: in training, the share of cases in which only the first levels are used, a random number of
            them; the others then have index -1, no loss and no update. ``True``: always.
        dropout_per: whether the ``"batch"`` is such a case or each ``"sample"``.
        dropout_min_levels, dropout_multiple_of: levels always used; a multiple to which the number used is rounded up.
        beam_size: how many ways to begin are kept from level to level, so that the levels together come nearest to the
            latent; 1: each level takes its nearest code. May be set later; quantizers with a codebook only.
        options: arguments of the inner quantizers.
    """

    searches_beams: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        codebook_size: int | Sequence[int],
        codebook_dim: int | Sequence[int] | None = None,
        *,
        num_quantizers: int | None = None,
        quantizer: str | MakeQuantizer = "ns_vq",
        shared_codebook: bool = False,
        quantizer_dropout: float = 0.0,
        dropout_per: str = "batch",
        dropout_min_levels: int = 1,
        dropout_multiple_of: int = 1,
        beam_size: int = 1,
        channel_first: bool = False,
        **options: Any,
    ) -> None:
        if num_quantizers is None:
            num_quantizers = next((len(own) for own in (codebook_size, codebook_dim) if is_several(own)), 4)
        levels = positive_int("num_quantizers", num_quantizers)
        each, outer_dim = [options] * levels, cast("int | None", None if is_several(codebook_dim) else codebook_dim)
        if is_several(codebook_dim):
            if shared_codebook:
                raise ValueError(f"a shared codebook has one codebook_dim, got {tuple(codebook_dim)}")
            each = [{**options, "codebook_dim": own} for own in per_part("codebook_dim", codebook_dim, levels)]
        sizes = per_part("codebook_size", codebook_size, levels)
        super().__init__(dim, max(sizes), outer_dim, channel_first)
        self._contain(self.codebook_dim, sizes, quantizer, shared_codebook, each)
        self.refine_(0)
        self.beam_size = beam_size
        self.quantizer_dropout = in_range("quantizer_dropout", float(quantizer_dropout), 0, 1)
        self.dropout_per = one_of("dropout_per", dropout_per, ("batch", "sample"))
        self.dropout_min_levels = int(in_range("dropout_min_levels", dropout_min_levels, 1, levels))
        self.dropout_multiple_of = int(in_range("dropout_multiple_of", dropout_multiple_of, 1, levels))

    def refine_(self, level: int) -> None:
        if self.shared_codebook and any(isinstance(m, Quantizer) and m.fixed_grid for m in self.modules()):
            raise ValueError(f"{type(self.part(0)).__name__} has a fixed grid, which levels cannot share")
        for own, quantizer in enumerate(self._inner()):
            quantizer.refine_(level * self.parts + own)

    @with_whole_parameters
    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """What each level adds, before the output projection: ``(q, …, codebook_dim)``, whose sum is the code."""
        flat, shape = self._flatten_indices(indices)
        return torch.stack([codes_nd.reshape(*shape, self.codebook_dim) for codes_nd in self._codes(flat, shape)])

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        levels = self.parts if call.levels is None else call.levels
        stored = (state.dtype for state in chain(self.parameters(), self.buffers()) if state.is_floating_point())
        # The sum of codes is then rounded as it is when indices are decoded.
        z_nd = z_nd.to(torch.promote_types(next(stored, torch.float32), torch.float32))
        kept = self._kept_levels(z_nd, call, levels) if self.training and self.quantizer_dropout > 0 else None
        choices = self._choices(z_nd, kept, levels) if self.beam_size > 1 else [None] * levels
        levels_run: list[tuple[Step, Tensor, Tensor]] = []
        residual_nd = z_nd
        for level in range(levels):
            valid_n = call.valid
            if kept is not None and level >= self.dropout_min_levels:
                valid_n = kept > level if valid_n is None else (kept > level) & valid_n
            own = call._replace(valid=valid_n, levels=None, choices=choices[level], first=self._first(level, call))
            levels_run.append(self._level(level, residual_nd, own))
            residual_nd = residual_nd - levels_run[-1][1].detach()
        steps, codes, indices = zip(*levels_run, strict=True)
        loss = sum((step.selection.loss for step in steps[1:]), steps[0].selection.loss)
        total_nd = sum(codes[1:], codes[0])
        # The value is the sum, the gradient the mean.
        mean_nd = total_nd / (levels if kept is None else kept[:, None])
        quantized_nd = total_nd.detach() + (mean_nd - mean_nd.detach())
        absent = self._absent(z_nd, call, levels)
        return Selection(quantized_nd, side_by_side(indices), loss, lesson=None, parts=steps, absent=absent)

    def _absent(self, z_nd: Tensor, call: Call, levels: int) -> tuple[Step, ...]:
        """What the levels after so many do with no latents: another process may use them, and waits for this one."""
        if not call.learns or world_size() == 1:
            return ()
        empty = call._replace(positions=torch.Size([0, *call.positions[1:]]), valid=None, levels=None)
        own = (empty._replace(first=self._first(level, call)) for level in range(levels, self.parts))
        return tuple(self._level(level, z_nd[:0], call)[0] for level, call in enumerate(own, levels))

    def _first(self, level: int, call: Call) -> bool:
        """Whether no level before has used this one's codebook in this step."""
        return call.first and (level == 0 or not self.shared_codebook)

    def _level(self, level: int, residual_nd: Tensor, call: Call) -> tuple[Step, Tensor, Tensor]:
        """What a level did, and what of it falls to each latent: codes ``(n, d)`` and indices."""
        step = self.part(level)._run(residual_nd, call)
        return step, step.quantized, step.indices

    @property
    def beam_size(self) -> int:
        """Ways to begin that are kept from level to level."""
        return self._beam_size

    @beam_size.setter
    def beam_size(self, size: int) -> None:
        self._beam_size = positive_int("beam_size", size)
        if size > 1 and not self.searches_beams:
            raise ValueError(f"{type(self).__name__} searches no beams: beam_size must be 1, got {size}")
        for quantizer in self._inner() if size > 1 else ():
            if not isinstance(quantizer, CodebookQuantizer) or not quantizer.book.takes_choices:
                name = type(quantizer).__name__
                raise ValueError(f"{name} takes its nearest code only: beam_size must be 1, got {size}")

    def _choices(self, z_nd: Tensor, kept: Tensor | None, levels: int) -> Sequence[Tensor | None]:
        """The codes of each level ``(n,)`` that a beam search finds, or found if the call is recomputed."""
        again = self.training and recomputing()
        choices: Sequence[Tensor | None] | None = self._past.found(z_nd) if again else None
        if choices is None:
            waits = any(isinstance(part, CodebookQuantizer) and part.start.waits() for part in self._inner()[:levels])
            choices = [None] * levels if waits else self._beam_search(z_nd, kept, levels)
        if self.training and not again:
            self._past.remember(z_nd, found=choices)
        return choices

    @torch.no_grad()
    def _beam_search(self, z_nd: Tensor, kept: Tensor | None, levels: int) -> list[Tensor]:
        """The codes of each level ``(n,)`` on the best way found: b ways, c candidates for the next level of each."""
        left_nbd, paths_nbq = z_nd[:, None], torch.empty(len(z_nd), 1, 0, dtype=torch.int64, device=z_nd.device)
        for level in range(levels):
            part, (ways, dim) = self.part(level), left_nbd.shape[1:]
            assert isinstance(part, CodebookQuantizer)
            found, codes = part._nearest_few(left_nbd.flatten(end_dim=1), self.beam_size)
            left = left_nbd[:, :, None] - codes.unflatten(0, (-1, ways))
            if kept is not None:  # a level that is dropped leaves the ways as they are
                used = (kept > level)[:, None, None, None]
                left = torch.where(used, left, left_nbd[:, :, None])
            error_nbc = left.square().sum(dim=3)
            if kept is not None:
                error_nbc[:, :, 1:] = torch.where(used[..., 0], error_nbc[:, :, 1:], torch.inf)
            most = min(self.beam_size, error_nbc[0].numel()) if len(z_nd) else 1
            best = error_nbc.flatten(1).topk(most, dim=1, largest=False).indices
            left_nbd = left.flatten(1, 2).gather(1, best[..., None].expand(-1, -1, dim))
            before = paths_nbq.gather(1, (best // found.shape[1])[..., None].expand(-1, -1, level))
            chosen = found.reshape(len(z_nd), -1).gather(1, best) if len(z_nd) else best
            paths_nbq = torch.cat([before, chosen[..., None]], dim=2)
        return list(paths_nbq[:, 0].unbind(dim=1))

    def _lookup_at(self, indices: Tensor, positions: torch.Size) -> Tensor:
        first_nd, *others = self._codes(indices, positions)
        return sum(others, first_nd)

    def _codes(self, indices_nq: Tensor, shape: torch.Size) -> list[Tensor]:
        """What each level adds ``(n, d)``."""
        return [self.part(level)._decode(own, shape) for level, own in enumerate(self._columns(indices_nq))]

    def _kept_levels(self, z_nd: Tensor, call: Call, levels: int) -> Tensor:
        """How many levels each latent uses ``(n,)``."""
        samples = call.positions[0] if self.dropout_per == "sample" else 1
        kept = torch.randint(min(self.dropout_min_levels, levels), levels + 1, (samples,), device=z_nd.device)
        kept = (kept + self.dropout_multiple_of - 1) // self.dropout_multiple_of * self.dropout_multiple_of
        dropped = torch.rand(samples, device=z_nd.device) < self.quantizer_dropout
        kept = torch.where(dropped, kept, levels).clamp(max=levels)
        return kept.repeat_interleave(len(z_nd) // max(samples, 1), output_size=len(z_nd))

    def _checked_levels(self, levels: int | None) -> int | None:
        return None if levels is None else int(in_range("levels", positive_int("levels", levels), 1, self.parts))

    def _check_width(self, indices: Tensor) -> None:
        allowed = range(self.indices_per_part, self.indices_per_position + 1, self.indices_per_part)
        if indices.ndim == 0 or indices.shape[-1] not in allowed:
            end = f"a dimension of {', '.join(map(str, allowed))} for 1 to {self.parts} levels"
            raise ValueError(f"indices must end in {end}, got shape {tuple(indices.shape)}")
