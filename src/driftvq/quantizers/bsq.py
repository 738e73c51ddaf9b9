"""Binary spherical quantization (Zhao et al., 2024)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

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
        entropy_fraction: share of the latents, drawn anew in each training step, of which they are computed.
        diversity_gamma: γ.
        inv_temperature: τ⁻¹ of the soft assignment inside the entropies.
        commitment_weight: β.
        dim, channel_first: see :class:`driftvq.quantizers.base.Quantizer`.
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
