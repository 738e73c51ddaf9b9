"""Codes and latents brought together by optimal transport: Fang et al., 2025; Zhang et al., 2024 (OptVQ)."""

import math
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from driftvq.functional import gaussian, highest_logit, moments, square_moments
from driftvq.functional.transport import distance_spread, mean_assignment, wasserstein_loss
from driftvq.names import in_range, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import Lesson, Match, TrainedCodes, row_weights
from driftvq.quantizers.codebooks.growth import Rule, copied
from driftvq.quantizers.distributed import sum_over_processes
from driftvq.quantizers.quantizer import register


class MatchedCodes(TrainedCodes):
    """Trained codes with the additional loss ``w · W²``."""

    def __init__(self, codebook_size: int, dim: int, weight: float) -> None:
        super().__init__(codebook_size, dim)
        self.weight = in_range("wasserstein_weight", weight, 0, float("inf"))

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        match = super().match(z_nd, codes_kd, valid_n, choices_n)
        if match.loss is None or not self.training or not codes_kd.requires_grad:
            return match
        with torch.no_grad():
            origin_d = codes_kd.mean(dim=0)
            (summed,) = sum_over_processes(moments(z_nd, row_weights(z_nd, valid_n), origin_d))
        distance = wasserstein_loss(codes_kd, gaussian(summed, origin_d))
        return match._replace(loss=match.loss + self.weight * torch.where(summed[0, 0] > 0, distance, 0))


@register("wasserstein_vq")
class WassersteinVQ(CodebookQuantizer):
    """Trained codes whose distribution is drawn to that of the latents as a whole, by the distance of two Gaussians.

    ``loss = mse(sg z, c) + β · mse(z, sg c) + w · W²(N(μ_c, Σ_c), N(μ_z, Σ_z))``

    ``W² = |μ_c - μ_z|² + tr(Σ_c + Σ_z - 2 (Σ_c^½ Σ_z Σ_c^½)^½)``; its gradient reaches every code, and no latent. w is
    ``wasserstein_weight``.
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


class PricedCodes(TrainedCodes):
    """Trained codes, chosen in training by ``argmax_k (v_k - ε |z - c_k|² / s)`` with a price v for each.

    Prices are high where a code is asked for too rarely; they are remembered from step to step.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {**TrainedCodes.rows_per_code, "prices": copied}
    training_state = ("prices",)

    def __init__(self, codebook_size: int, dim: int, sharpness: float, iterations: int) -> None:
        super().__init__(codebook_size, dim)
        self.sharpness = in_range("sharpness", sharpness, 0, float("inf"))
        self.iterations = positive_int("iterations", iterations)
        self.register_buffer("prices", torch.zeros(codebook_size))

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        if not self.training or not codes_kd.requires_grad or choices_n is not None:
            return super().match(z_nd, codes_kd, valid_n, choices_n)
        winners_n, prices_k = self._balanced(z_nd.detach(), codes_kd.detach(), valid_n)
        return super().match(z_nd, codes_kd, valid_n, winners_n)._replace(seen=prices_k)

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        prices_k: Tensor | None = lesson.seen
        if prices_k is None:  # the latents of several levels
            _, prices_k = self._balanced(lesson.latents, self.codes.to(lesson.latents), lesson.valid)
        self.prices.copy_(prices_k)
        return super().learn_(lesson)

    @torch.no_grad()
    def _balanced(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """The codes chosen at prices that are brought up to date ``(n,)``, and these prices ``(k,)``."""
        origin_d, weight_n = codes_kd.mean(dim=0), row_weights(z_nd, valid_n)
        (latents,) = sum_over_processes(square_moments(z_nd, weight_n, origin_d))
        codes = square_moments(codes_kd, codes_kd.new_ones(len(codes_kd)), origin_d)
        total = latents[0, 0].to(z_nd.dtype)
        # In units of the distances: their squares alone would leave single precision's range at small scales.
        unit = distance_spread(latents, codes).sqrt().to(z_nd.dtype)
        z_nd, codes_kd = (z_nd - origin_d) / unit, (codes_kd - origin_d) / unit
        weight_kd, cost_k = codes_kd * (2 * self.sharpness), codes_kd.square().sum(dim=1) * self.sharpness
        prices_k = self.prices.to(z_nd.dtype)
        for _ in range(self.iterations):
            asked_k = mean_assignment(z_nd, weight_kd, prices_k - cost_k, weight_n / total.clamp(min=1))
            (asked_k,) = sum_over_processes(asked_k)
            prices_k = prices_k - (asked_k.clamp(min=torch.finfo(z_nd.dtype).tiny).log() + math.log(len(codes_kd)))
            prices_k = prices_k - prices_k.mean()
        prices_k = torch.where(total > 0, prices_k, self.prices.to(z_nd.dtype))
        return highest_logit(z_nd, weight_kd, prices_k - cost_k), prices_k

    def set_(self, codes_kd: Tensor) -> None:
        super().set_(codes_kd)
        self.prices.zero_()


@register("opt_vq")
class OptVQ(CodebookQuantizer):
    """In training a latent takes the code that a balanced transport plan sends it to, in evaluation the nearest.

    ``P = argmax_{P1 = 1/N, Pᵀ1 = 1/K} -Σ_ik P_ik ε d_ik/s + H(P)``,  ``win(i) = argmax_k P_ik``

    with squared distances d and their standard deviation s over all pairs; ``loss = mse(sg z, c) + β · mse(z, sg c)``.
    The plan is ``P_ik ∝ exp(v_k - ε d_ik/s)``, ε the ``sharpness``, for prices v, which Sinkhorn's algorithm finds by
    so many ``iterations`` per training step, each a pass over latents × codes in blocks.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        sharpness: float = 10.0,
        iterations: int = 1,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self._own(PricedCodes(codebook_size, self.codebook_dim, sharpness, iterations))
