"""Lookup-free quantization (Yu et al., 2023: MAGVIT-v2), and its form on a sphere (Zhao et al., 2024)."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import masked_mse, soft_usage, straight_through
from driftvq.names import in_range, positive_int
from driftvq.quantizers.distributed import mean_over_processes
from driftvq.quantizers.quantizer import Quantizer
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("lfq")
class LFQ(Quantizer):
    """Each of log₂K dimensions is quantised to its sign; the codebook is the cube {-1, 1}^log₂K.

    ``loss = entropy_weight · (mean_i H(p_i) - γ · H(mean_i p_i)) + β · mse(z, sg c)``

    with ``p_i = softmax_k(2 τ⁻¹ z_i·c_k)``.

    The first entropy makes each choice sure, the second makes all codes be used. As level l of a :class:`ResidualVQ`
    the cube is 2^-l times as large, and the entropies are those of latents that are as much smaller. On a sphere
    instead of a cube it is :class:`BSQ`.

    Args:
        codebook_size: K, a power of two.
        entropy_weight: weight of the two entropies.
        entropy_fraction: share of the latents, drawn anew in each training step, of which the entropies are computed.
        diversity_gamma: γ.
        inv_temperature: τ⁻¹ of the soft assignment inside the entropies.
        commitment_weight: β.
        dim, channel_first: see :class:`driftvq.quantizers.quantizer.Quantizer`.
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

    @property
    def codebook(self) -> Tensor:
        return self._lookup(torch.arange(self.codebook_size, device=self.code_age.device))

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
        z_nd, weight_n = self._for_entropy(z_nd, valid_n)
        share_n = weight_n / weight_n.sum().clamp(min=1)
        weight_kd = self.codebook.to(z_nd.dtype) * (2 * self.inv_temperature / self._size())
        mean_k, entropy = soft_usage(z_nd, weight_kd, z_nd.new_zeros(self.codebook_size), share_n)
        if self.training:
            mean_k = mean_over_processes(mean_k, weight_n.sum())
        # Not special.entr: its slope at a mean of exactly 0 is infinite.
        tiny = torch.finfo(z_nd.dtype).tiny
        return entropy + self.diversity_gamma * (mean_k * mean_k.clamp(min=tiny).log()).sum()

    def _for_entropy(self, z_nd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """The latents of which the entropies are computed, and their weights."""
        weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
        if not self.training or self.entropy_fraction == 1 or len(z_nd) == 0:
            return z_nd, weight_n
        some = torch.randperm(len(z_nd), device=z_nd.device)[: math.ceil(self.entropy_fraction * len(z_nd))]
        return z_nd[some], weight_n[some]

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
    entropy is the sum of theirs, and H̃ takes that sum for the mean as well. So a step costs N × L and never N × K.

    Args:
        codebook_size: K, a power of two.
        entropy_weight: weight of the two entropies.
        entropy_fraction: share of the latents, drawn anew in each training step, of which they are computed.
        diversity_gamma: γ.
        inv_temperature: τ⁻¹ of the soft assignment inside the entropies.
        commitment_weight: β.
        dim, channel_first: see :class:`driftvq.quantizers.quantizer.Quantizer`.
    """

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        unit_nd = F.normalize(z_nd, dim=1, eps=torch.finfo(z_nd.dtype).tiny ** 0.5)
        return super()._select(unit_nd * (self._size() * math.sqrt(self.codebook_dim)), call)

    def _entropy_loss(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor:
        z_nd, weight_n = self._for_entropy(z_nd, valid_n)
        share_n1 = (weight_n / weight_n.sum().clamp(min=1))[:, None]
        p_nd = torch.sigmoid(z_nd * (4 * self.inv_temperature / self.codebook_dim))
        mean_d = (share_n1 * p_nd).sum(dim=0)
        if self.training:
            mean_d = mean_over_processes(mean_d, weight_n.sum())
        some = (weight_n.sum() > 0).to(z_nd.dtype)
        return (share_n1 * _bit_entropy(p_nd)).sum() - self.diversity_gamma * some * _bit_entropy(mean_d).sum()

    def _size(self) -> float:
        return super()._size() / math.sqrt(self.codebook_dim)


def _bit_entropy(p: Tensor) -> Tensor:
    """``-p log p - (1-p) log(1-p)``, with a finite slope everywhere."""
    tiny = torch.finfo(p.dtype).tiny
    return -(p * p.clamp(min=tiny).log() + (1 - p) * (1 - p).clamp(min=tiny).log())
