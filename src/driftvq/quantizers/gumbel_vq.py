"""Gumbel-softmax quantization (Jang et al., 2017; Baevski et al., 2019; Ramesh et al., 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import gumbel_softmax, highest_logit, soft_usage
from driftvq.quantizers.arguments import in_range
from driftvq.quantizers.base import Quantizer
from driftvq.quantizers.codebooks.base import initial_codes
from driftvq.quantizers.distributed import with_whole_parameters
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("gumbel_vq")
class GumbelVQ(Quantizer):
    """A linear layer scores the codes; a code is sampled in training and the best one taken in evaluation.

    ``l_k = w_k·z + b_k``,  ``quantized = c_k, k ~ softmax(l)`` with the gradient of ``Σ_k softmax_k((l + g)/τ) c_k``;
    ``loss = kl_weight · KL(softmax(l) ‖ uniform)``

    Args:
        temperature: τ; usually annealed by the caller: set the attribute.
        kl_weight: weight of the divergence from uniform use.
        freeze_codebook: do not train the codes; may be set later.
        Others: see :class:`driftvq.quantizers.base.Quantizer`.

    There is no distance and hence no nearest code: the selected code is the one of the highest score.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        temperature: float = 1.0,
        kl_weight: float = 5e-4,
        freeze_codebook: bool = False,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, channel_first)
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature!r}")
        self.temperature = temperature
        self.kl_weight = in_range("kl_weight", kl_weight, 0, float("inf"))
        self.scores = nn.Linear(self.codebook_dim, codebook_size)
        self.codes = nn.Parameter(initial_codes(codebook_size, self.codebook_dim))
        self.freeze_codebook = freeze_codebook

    @property
    @with_whole_parameters
    def codebook(self) -> Tensor:
        return self.codes

    @property
    def freeze_codebook(self) -> bool:
        """While True no code moves."""
        return not self.codes.requires_grad

    @freeze_codebook.setter
    def freeze_codebook(self, frozen: bool) -> None:
        self.codes.requires_grad_(not frozen)

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        weight_kd, bias_k = self.scores.weight.to(z_nd.dtype), self.scores.bias.to(z_nd.dtype)
        codebook_kd = (self.codes if call.trains else self.codes.detach()).to(z_nd.dtype)
        share_n = z_nd.new_ones(len(z_nd)) if call.valid is None else call.valid.to(z_nd.dtype)
        share_n = share_n / share_n.sum().clamp(min=1)
        _, entropy = soft_usage(z_nd, weight_kd, bias_k, share_n)
        divergence = math.log(self.codebook_size) * share_n.sum() - entropy
        if self.training:
            seed = torch.randint(2**62, ())
            indices_n, quantized_nd = gumbel_softmax(z_nd, weight_kd, bias_k, codebook_kd, self.temperature, seed)
        else:
            indices_n = highest_logit(z_nd, weight_kd, bias_k)
            quantized_nd = F.embedding(indices_n, codebook_kd)
        lesson = self._lesson(z_nd, indices_n, call.valid)
        return Selection(quantized_nd, indices_n, self.kl_weight * divergence, lesson, {"entropy": divergence})

    def _lookup(self, indices_n: Tensor) -> Tensor:
        return F.embedding(indices_n.clamp(min=0), self.codes)
