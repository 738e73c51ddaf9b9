"""Wasserstein VQ (Fang et al., 2025): the codes' mean and covariance are matched to those of the latents."""

from typing import Unpack

import torch
from torch import Tensor

from driftvq.functional import gaussian, moments, wasserstein_loss
from driftvq.names import in_range
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import Match
from driftvq.quantizers.codebooks.trained import TrainedCodes
from driftvq.quantizers.distributed import sum_over_processes
from driftvq.quantizers.registry import register


class MatchedCodes(TrainedCodes):
    """Trained codes with the additional loss ``w · W²``.

    Args:
        codebook_size: K.
        dim: dimension of a code.
        weight: w.
    """

    def __init__(self, codebook_size: int, dim: int, weight: float) -> None:
        super().__init__(codebook_size, dim)
        self.weight = in_range("wasserstein_weight", weight, 0, float("inf"))

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        match = super().match(z_nd, codes_kd, valid_n, choices_n)
        if match.loss is None or not self.training or not codes_kd.requires_grad:
            return match
        with torch.no_grad():
            origin_d = codes_kd.mean(dim=0)
            weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
            (summed,) = sum_over_processes(moments(z_nd, weight_n, origin_d))
        distance = wasserstein_loss(codes_kd, gaussian(summed, origin_d))
        return match._replace(loss=match.loss + self.weight * torch.where(summed[0, 0] > 0, distance, 0))


@register("wasserstein_vq")
class WassersteinVQ(CodebookQuantizer):
    """Trained codes whose distribution is drawn to that of the latents as a whole, by the distance of two Gaussians.

    ``loss = mse(sg z, c) + β · mse(z, sg c) + w · W²(N(μ_c, Σ_c), N(μ_z, Σ_z))``

    ``W² = |μ_c - μ_z|² + tr(Σ_c + Σ_z - 2 (Σ_c^½ Σ_z Σ_c^½)^½)``; its gradient reaches every code, and no latent.

    Args:
        wasserstein_weight: w.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        wasserstein_weight: float = 0.5,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self._own(MatchedCodes(codebook_size, self.codebook_dim, wasserstein_weight))
