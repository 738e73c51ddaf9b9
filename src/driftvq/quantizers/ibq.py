"""Index backpropagation quantization (Shi et al., 2024): the gradient passes through the choice among all codes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import highest_logit, index_softmax, masked_mse
from driftvq.quantizers.arguments import in_range
from driftvq.quantizers.base import Quantizer
from driftvq.quantizers.distributed import mean_over_processes
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("ibq")
class IBQ(Quantizer):
    """The code of the highest score ``z·c_k``; straight-through on the one-hot index, not on the code.

    ``p = softmax_k(z·c_k)``,  ``q = Σ_k (onehot_k + p_k - sg p_k) c_k``,
    ``loss = mse(q, z) + mse(z, sg ĉ) + β · mse(sg z, ĉ) + w · (mean_i H(p_i) - H(mean_i p_i))``

    with ĉ the selected code. Every code receives a gradient through p, and so does the latent: no other reaches it from
    the decoder.

    Args:
        commitment_weight: β; unlike elsewhere it stands on the codes' term, as in the paper.
        entropy_weight: w.
        freeze_codebook: do not train the codes; may be set later.
        Others: see :class:`driftvq.quantizers.base.Quantizer`.

    There is no distance and hence no nearest code.
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
        self.codes = nn.Parameter(torch.randn(codebook_size, self.codebook_dim))
        self.freeze_codebook = freeze_codebook

    @property
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
        codebook_kd = (self.codes if call.trains else self.codes.detach()).to(z_nd.dtype)
        if not self.training:
            indices_n = highest_logit(z_nd, codebook_kd, z_nd.new_zeros(self.codebook_size))
            soft_nd, terms = F.embedding(indices_n, codebook_kd), {}
        else:
            share_n = z_nd.new_ones(len(z_nd)) if call.valid is None else call.valid.to(z_nd.dtype)
            count = share_n.sum()
            indices_n, soft_nd, mean_k, entropy = index_softmax(z_nd, codebook_kd, share_n / count.clamp(min=1))
            terms = {"entropy": entropy - _entropy(mean_over_processes(mean_k, count))}
        hard_nd = F.embedding(indices_n, codebook_kd)
        terms["commitment"] = masked_mse(soft_nd, z_nd, call.valid) + masked_mse(z_nd, hard_nd.detach(), call.valid)
        terms["codebook"] = masked_mse(z_nd.detach(), hard_nd, call.valid)
        loss = terms["commitment"] + self.commitment_weight * terms["codebook"]
        if "entropy" in terms:
            loss = loss + self.entropy_weight * terms["entropy"]
        return Selection(soft_nd, indices_n, loss, self._lesson(z_nd, indices_n, call.valid), terms)

    def _lookup(self, indices_n: Tensor) -> Tensor:
        return F.embedding(indices_n.clamp(min=0), self.codes)


def _entropy(p_k: Tensor) -> Tensor:
    """``-Σ p log p``; not special.entr, whose slope at exactly 0 is infinite."""
    return -(p_k * p_k.clamp(min=torch.finfo(p_k.dtype).tiny).log()).sum()
