"""Binary spherical quantization (Zhao et al., 2024)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import masked_mse, straight_through
from driftvq.quantizers.distributed import mean_over_processes
from driftvq.quantizers.lfq import LFQ
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("bsq")
class BSQ(LFQ):
    """The latent is brought to unit length and each of its log₂K = L dimensions quantised to ±1/√L, its sign.

    ``u = z/|z|``,  ``loss = entropy_weight · (mean_i H(p_i) - γ · H̃(mean_i p_i)) + β · mse(u, sg c)``

    with ``p_i = softmax_k(2 τ⁻¹ u_i·c_k)``, which is a product over the bits, ``p(b_j = 1) = σ(4 τ⁻¹ u_j/√L)``: its
    entropy is the sum of theirs, and H̃ takes that sum for the mean as well. So a step costs N × L and never N × K.

    Args:
        codebook_size: K, a power of two.
        entropy_weight: weight of the two entropies.
        diversity_gamma: γ.
        inv_temperature: τ⁻¹ of the soft assignment inside the entropies.
        commitment_weight: β.
        dim, channel_first: see :class:`driftvq.quantizers.base.Quantizer`.
    """

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        unit_nd = F.normalize(z_nd, dim=1, eps=torch.finfo(z_nd.dtype).tiny ** 0.5)
        bits_nd = unit_nd > 0
        codes_nd = torch.where(bits_nd, self._length(), -self._length()).to(z_nd.dtype)
        indices_n = (bits_nd * self._bit_values()).sum(dim=1)
        terms = {"commitment": masked_mse(unit_nd, codes_nd, call.valid)}
        loss = self.commitment_weight * terms["commitment"]
        if self.entropy_weight > 0:
            terms["entropy"] = self._entropy_loss(unit_nd, call.valid)
            loss = loss + self.entropy_weight * terms["entropy"]
        lesson = self._lesson(z_nd, indices_n, call.valid)
        return Selection(straight_through(unit_nd, codes_nd), indices_n, loss, lesson, terms)

    def _entropy_loss(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor:
        weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
        share_n1 = (weight_n / weight_n.sum().clamp(min=1))[:, None]
        p_nd = torch.sigmoid(z_nd * (4 * self.inv_temperature * self._length()))
        mean_d = (share_n1 * p_nd).sum(dim=0)
        if self.training:
            mean_d = mean_over_processes(mean_d, weight_n.sum())
        some = (weight_n.sum() > 0).to(z_nd.dtype)
        return (share_n1 * _bit_entropy(p_nd)).sum() - self.diversity_gamma * some * _bit_entropy(mean_d).sum()

    def _lookup(self, indices_n: Tensor) -> Tensor:
        return super()._lookup(indices_n) * self._length()

    def _length(self) -> float:
        return 1 / math.sqrt(self.codebook_dim)


def _bit_entropy(p: Tensor) -> Tensor:
    """``-p log p - (1-p) log(1-p)``, with a finite slope everywhere."""
    tiny = torch.finfo(p.dtype).tiny
    return -(p * p.clamp(min=tiny).log() + (1 - p) * (1 - p).clamp(min=tiny).log())
