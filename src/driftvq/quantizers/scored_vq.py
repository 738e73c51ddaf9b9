"""Codes chosen by a score instead of a distance."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import gumbel_softmax, highest_logit, index_softmax, masked_mse, soft_usage, straight_through
from driftvq.functional.soft import entropies
from driftvq.names import in_range
from driftvq.quantizers.codebooks.base import initial_codes, row_weights
from driftvq.quantizers.distributed import mean_over_processes, with_whole_parameters
from driftvq.quantizers.quantizer import Quantizer, register
from driftvq.quantizers.steps import Call, Selection


class ScoredVQ(Quantizer):
    """Base: trained codes ``(k, d)``, given to :meth:`_own`; there is no distance and hence no nearest code."""

    own_scale: ClassVar[bool] = True
    codes: nn.Parameter

    def _own(self, codes_kd: Tensor, freeze_codebook: bool) -> None:
        self.codes = nn.Parameter(codes_kd)
        self.freeze_codebook = freeze_codebook

    @property
    @with_whole_parameters
    def codebook(self) -> Tensor:
        """The codes; frozen ones get no gradient, whatever else turns ``requires_grad`` on."""
        return self.codes.detach() if self._frozen else self.codes

    @property
    def freeze_codebook(self) -> bool:
        """While True no code moves."""
        return self._frozen

    @freeze_codebook.setter
    def freeze_codebook(self, frozen: bool) -> None:
        self._frozen = frozen
        self.codes.requires_grad_(not frozen)
        self.codes.grad = None if frozen else self.codes.grad  # at 0 an optimizer's momentum would move them on

    def _given(self, z_nd: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        """The codes as this call may train them, each latent's share of the batch ``(n,)``, and how many count."""
        codebook_kd = (self.codebook if call.trains else self.codes.detach()).to(z_nd.dtype)
        counts_n = row_weights(z_nd, call.valid)
        count = counts_n.sum()
        return codebook_kd, counts_n / count.clamp(min=1), count


@register("gumbel_vq")
class GumbelVQ(ScoredVQ):
    """A linear layer scores the codes; one is sampled in training, the best taken in evaluation (Jang et al., 2017).

    ``l_k = w_k·z + b_k``,  ``quantized = c_k, k ~ softmax(l)`` with the gradient of ``Σ_k softmax_k((l + g)/τ) c_k``;
    ``loss = kl_weight · KL(softmax(l) ‖ uniform)``

    τ is the ``temperature``, usually annealed by the caller, who sets the attribute; ``freeze_codebook``, to train no
    code, may be set later too.
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
        self._own(initial_codes(codebook_size, self.codebook_dim), freeze_codebook)

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        weight_kd, bias_k = self.scores.weight.to(z_nd.dtype), self.scores.bias.to(z_nd.dtype)
        codebook_kd, share_n, _ = self._given(z_nd, call)
        _, entropy = soft_usage(z_nd, weight_kd, bias_k, share_n)
        divergence = math.log(self.codebook_size) * share_n.sum() - entropy
        if self.training:
            seed = torch.randint(2**62, (), device=z_nd.device)
            indices_n, quantized_nd = gumbel_softmax(z_nd, weight_kd, bias_k, codebook_kd, self.temperature, seed)
        else:
            indices_n = highest_logit(z_nd, weight_kd, bias_k)
            quantized_nd = straight_through(z_nd, F.embedding(indices_n, codebook_kd))
        lesson = self._lesson(z_nd, indices_n, call.valid)
        return Selection(quantized_nd, indices_n, self.kl_weight * divergence, lesson, {"entropy": divergence})


@register("ibq")
class IBQ(ScoredVQ):
    """The code of the highest score ``z·c_k``; straight-through on the one-hot index, not the code (Shi et al., 2024).

    ``p = softmax_k(z·c_k)``,  ``q = Σ_k (onehot_k + p_k - sg p_k) c_k``,
    ``loss = mse(q, z) + mse(z, sg ĉ) + β · mse(sg z, ĉ) + w · (mean_i H(p_i) - H(mean_i p_i))``

    with ĉ the selected code. Every code receives a gradient through p, and so does the latent: no other reaches it from
    the decoder. β is ``commitment_weight``: unlike elsewhere it stands on the codes' term, as in the paper; w is
    ``entropy_weight``; ``freeze_codebook``, to train no code, may be set later too.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        commitment_weight: float = 0.25,
        entropy_weight: float = 0.05,
        freeze_codebook: bool = False,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, channel_first)
        self.commitment_weight = in_range("commitment_weight", commitment_weight, 0, float("inf"))
        self.entropy_weight = in_range("entropy_weight", entropy_weight, 0, float("inf"))
        # Not the usual ±1/K: at codes near 0 all scores are equal, and no gradient passes through them.
        self._own(torch.randn(codebook_size, self.codebook_dim), freeze_codebook)

    @property
    def term_weights(self) -> tuple[float, float]:
        return 1.0, self.commitment_weight

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        codebook_kd, share_n, count = self._given(z_nd, call)
        if not self.training:
            indices_n = highest_logit(z_nd, codebook_kd, z_nd.new_zeros(self.codebook_size))
            soft_nd, terms = F.embedding(indices_n, codebook_kd), {}
        else:
            indices_n, soft_nd, mean_k, entropy = index_softmax(z_nd, codebook_kd, share_n)
            terms = {"entropy": entropy - entropies(mean_over_processes(mean_k, count)).sum()}
        hard_nd = F.embedding(indices_n, codebook_kd)
        terms["commitment"] = masked_mse(soft_nd, z_nd, call.valid) + masked_mse(z_nd, hard_nd.detach(), call.valid)
        terms["codebook"] = masked_mse(z_nd.detach(), hard_nd, call.valid)
        loss = terms["commitment"] + self.commitment_weight * terms["codebook"]
        if "entropy" in terms:
            loss = loss + self.entropy_weight * terms["entropy"]
        quantized_nd = soft_nd if self.training else straight_through(z_nd, hard_nd)
        return Selection(quantized_nd, indices_n, loss, self._lesson(z_nd, indices_n, call.valid), terms)
