"""Codes on a fixed grid, with nothing to train but projections."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import masked_mse, soft_usage, straight_through
from driftvq.functional.soft import entropies
from driftvq.names import in_range, positive_int
from driftvq.quantizers.codebooks.base import row_weights
from driftvq.quantizers.distributed import mean_over_processes
from driftvq.quantizers.quantizer import Quantizer, register
from driftvq.quantizers.steps import Call, Selection

BOUND_MARGIN = 1e-3  # how far the bound reaches past the outermost levels, so that they can be reached at all


@register("fsq")
class FSQ(Quantizer):
    """Each of a few dimensions is bounded and rounded to a fixed number of levels; the codebook is their product.

    ``q_j = round(h_j tanh(a z_j + s_j) - o_j) / ⌊L_j/2⌋`` with ``h_j ≈ (L_j-1)/2``, ``o_j`` ½ for even ``L_j`` else 0;

    symmetric:  ``q_j = 2 round(½ (L_j - 1)(tanh(a z_j) + 1)) / (L_j - 1) - 1``

    Finite scalar quantization (Mentzer et al., 2023) has no loss. As level l of a :class:`ResidualVQ` the grid is
    the symmetric one, ``(L_j - 1)^-l`` times as large, so that it divides a step of the grid before it; there latents
    are cut off at its ends and not bent by tanh, which would leave every level the same error.

    Args:
        codebook_size: number of codes, the product of the levels; levels of 8 and less are chosen for it.
        levels: the levels themselves, e.g. ``(8, 5, 5, 5)``; ``codebook_size`` may then be left out.
        slope: a; 0.8 makes it iFSQ, whose bound is ``2σ(1.6 z) - 1 = tanh(0.8 z)``: of normally distributed latents the
            bounded value is about uniform. The levels are not used equally: the outer ones own half a step each.
        symmetric: codes from -1 to 1 in equal steps, for even numbers of levels too.
    """

    fixed_grid: ClassVar[bool] = True
    levels: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int | None = None,
        *,
        levels: Sequence[int] | None = None,
        slope: float = 1.0,
        symmetric: bool = False,
        channel_first: bool = False,
    ) -> None:
        positive_int("dim", dim)
        levels = _checked_levels(codebook_size, levels)
        super().__init__(dim, math.prod(levels), len(levels), channel_first)
        self.slope = in_range("slope", slope, 1e-6, float("inf"))
        self.symmetric = symmetric
        self.register_buffer("levels", torch.tensor(levels))

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        bounded_nd = self._bounded(z_nd)
        digits_nd = torch.minimum(bounded_nd.detach().round().clamp(min=0), (self.levels - 1).to(z_nd))
        indices_n = (digits_nd.to(torch.int64) * self._basis()).sum(dim=1)
        smooth_nd = z_nd if self.level is not None else self._codes(bounded_nd)
        codes_nd = self._codes(digits_nd.to(self._precision()))
        quantized_nd = straight_through(smooth_nd, codes_nd.to(smooth_nd))
        return Selection(quantized_nd, indices_n, z_nd.new_zeros(()), self._lesson(z_nd, indices_n, call.valid))

    def _bounded(self, z_nd: Tensor) -> Tensor:
        """Where on the grid latents lie, from 0 to L - 1."""
        steps_d = (self.levels - 1).to(z_nd.dtype)
        if self.level is not None:
            return ((z_nd * steps_d**self.level).clamp(-1, 1) + 1) * (steps_d / 2)
        if self.symmetric:
            return (torch.tanh(self.slope * z_nd) + 1) * (steps_d / 2)
        half_d = steps_d * (1 + BOUND_MARGIN) / 2
        offset_d = torch.where(self.levels % 2 == 0, 0.5, 0.0).to(z_nd.dtype)
        return torch.tanh(self.slope * z_nd + torch.atanh(offset_d / half_d)) * half_d - offset_d + self.levels // 2

    def _codes(self, digits_nd: Tensor) -> Tensor:
        """The codes at these places of the grid."""
        steps_d = (self.levels - 1).to(digits_nd.dtype)
        if self.level is not None:
            return (2 * digits_nd / steps_d - 1) / steps_d**self.level
        if self.symmetric:
            return 2 * digits_nd / steps_d - 1
        return (digits_nd - self.levels // 2) / (self.levels // 2)

    def _lookup(self, indices_n: Tensor) -> Tensor:
        digits_nd = (indices_n[:, None] // self._basis()) % self.levels
        return self._codes(digits_nd.to(self._precision()))

    def _precision(self) -> torch.dtype:
        """Of codes: that of the projection, at least float32."""
        weight = next(self.project_out.parameters(), None)
        return torch.float32 if weight is None else torch.promote_types(weight.dtype, torch.float32)

    def _basis(self) -> Tensor:
        return torch.cat([self.levels.new_ones(1), self.levels[:-1].cumprod(dim=0)])


def default_levels(codebook_size: int, most: int = 8) -> tuple[int, ...] | None:
    """Levels between 3 and ``most``, descending, whose product is the codebook size; None if there are none."""
    if codebook_size == 1:
        return ()
    for level in range(min(most, codebook_size), 2, -1):
        if codebook_size % level == 0:
            rest = default_levels(codebook_size // level, level)
            if rest is not None:
                return (level, *rest)
    return None


def _checked_levels(size: int | None, levels: Sequence[int] | None) -> tuple[int, ...]:
    if levels is None:
        found = default_levels(positive_int("codebook_size", size)) if size != 1 else None
        if found is None:
            raise ValueError(f"FSQ needs a codebook_size that is a product of numbers from 3 to 8, got {size!r}")
        return found
    if not levels or any(level < 3 for level in levels):
        raise ValueError(f"levels must each be at least 3, got {tuple(levels)}")
    if size is not None and size != math.prod(levels):
        raise ValueError(f"codebook_size {size} is not the product of levels {tuple(levels)}")
    return tuple(levels)


@register("lfq")
class LFQ(Quantizer):
    """Each of log₂K dimensions is quantised to its sign; the codebook is the cube {-1, 1}^log₂K (Yu et al., 2023).

    ``loss = entropy_weight · (mean_i H(p_i) - γ · H(mean_i p_i)) + β · mse(z, sg c)``

    with ``p_i = softmax_k(2 τ⁻¹ z_i·c_k)``; γ is ``diversity_gamma``, β ``commitment_weight``, τ⁻¹ ``inv_temperature``,
    and K a power of two. The first entropy makes each choice sure, the second makes all codes be used; they are
    computed of a share of the latents, ``entropy_fraction``, drawn anew in each training step. As level l of a
    :class:`ResidualVQ` the cube is 2^-l times as large, and the entropies are those of latents that are as much
    smaller. On a sphere instead of a cube it is :class:`BSQ`.
    """

    fixed_grid: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        entropy_weight: float = 0.1,
        entropy_fraction: float = 1.0,
        diversity_gamma: float = 1.0,
        inv_temperature: float = 100.0,
        commitment_weight: float = 0.25,
        channel_first: bool = False,
    ) -> None:
        if positive_int("codebook_size", codebook_size) < 2 or codebook_size & (codebook_size - 1):
            raise ValueError(f"LFQ needs a codebook_size that is a power of two, got {codebook_size}")
        super().__init__(dim, codebook_size, codebook_size.bit_length() - 1, channel_first)
        self.entropy_weight = in_range("entropy_weight", entropy_weight, 0, float("inf"))
        self.entropy_fraction = in_range("entropy_fraction", entropy_fraction, 0, 1)
        self.diversity_gamma = in_range("diversity_gamma", diversity_gamma, 0, float("inf"))
        self.inv_temperature = in_range("inv_temperature", inv_temperature, 0, float("inf"))
        self.commitment_weight = in_range("commitment_weight", commitment_weight, 0, float("inf"))

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        bits_nd = z_nd > 0
        codes_nd = torch.where(bits_nd, self._size(), -self._size()).to(z_nd.dtype)
        indices_n = (bits_nd * self._bit_values()).sum(dim=1)
        terms = {"commitment": masked_mse(z_nd, codes_nd, call.valid)}
        loss = self.commitment_weight * terms["commitment"]
        if self.entropy_weight > 0:
            terms["entropy"] = self._entropy_loss(z_nd / self._size(), call.valid)
            loss = loss + self.entropy_weight * terms["entropy"]
        lesson = self._lesson(z_nd, indices_n, call.valid)
        return Selection(straight_through(z_nd, codes_nd), indices_n, loss, lesson, terms)

    def _entropy_loss(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor:
        z_nd, share_n, count = self._for_entropy(z_nd, valid_n)
        weight_kd = self.codebook.to(z_nd.dtype) * (2 * self.inv_temperature / self._size())
        mean_k, entropy = soft_usage(z_nd, weight_kd, z_nd.new_zeros(self.codebook_size), share_n)
        if self.training:
            mean_k = mean_over_processes(mean_k, count)
        return entropy - self.diversity_gamma * entropies(mean_k).sum()

    def _for_entropy(self, z_nd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The latents of which the entropies are computed, each one's share of them, and how many count."""
        weight_n = row_weights(z_nd, valid_n)
        if self.training and self.entropy_fraction < 1 and len(z_nd) > 0:
            some = torch.randperm(len(z_nd), device=z_nd.device)[: math.ceil(self.entropy_fraction * len(z_nd))]
            z_nd, weight_n = z_nd[some], weight_n[some]
        count = weight_n.sum()
        return z_nd, weight_n / count.clamp(min=1), count

    def _lookup(self, indices_n: Tensor) -> Tensor:
        bits_nd = (indices_n[:, None] & self._bit_values()) != 0
        return torch.where(bits_nd, self._size(), -self._size())

    def _size(self) -> float:
        """Half the edge of the cube."""
        return 2.0 ** -(self.level or 0)

    def _bit_values(self) -> Tensor:
        """The first dimension is the most significant bit."""
        return 2 ** torch.arange(self.codebook_dim - 1, -1, -1, device=self.code_age.device)


@register("bsq")
class BSQ(LFQ):
    """LFQ on the sphere: the latent is brought to unit length, each of its log₂K = L dimensions quantised to ±1/√L.

    ``u = z/|z|``,  ``loss = entropy_weight · (mean_i H(p_i) - γ · H̃(mean_i p_i)) + β · mse(u, sg c)``

    with ``p_i = softmax_k(2 τ⁻¹ u_i·c_k)``, which is a product over the bits, ``p(b_j = 1) = σ(4 τ⁻¹ u_j/√L)``: its
    entropy is the sum of theirs, and H̃ takes that sum for the mean as well. So a step costs N × L and never N × K
    (Zhao et al., 2024). The arguments are those of :class:`LFQ`.
    """

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        unit_nd = F.normalize(z_nd, dim=1, eps=torch.finfo(z_nd.dtype).tiny ** 0.5)
        return super()._select(unit_nd * (self._size() * math.sqrt(self.codebook_dim)), call)

    def _entropy_loss(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor:
        z_nd, share_n, count = self._for_entropy(z_nd, valid_n)
        share_n1, p_nd = share_n[:, None], torch.sigmoid(z_nd * (4 * self.inv_temperature / self.codebook_dim))
        mean_d = (share_n1 * p_nd).sum(dim=0)
        if self.training:
            mean_d = mean_over_processes(mean_d, count)
        some = (count > 0).to(z_nd.dtype)
        return (share_n1 * _bit_entropy(p_nd)).sum() - self.diversity_gamma * some * _bit_entropy(mean_d).sum()

    def _size(self) -> float:
        return super()._size() / math.sqrt(self.codebook_dim)


def _bit_entropy(p: Tensor) -> Tensor:
    """``-p log p - (1-p) log(1-p)``."""
    return entropies(p) + entropies(1 - p)
