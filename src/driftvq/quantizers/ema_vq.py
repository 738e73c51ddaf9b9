"""Codebook by exponential moving averages (van den Oord et al., 2017, App. A; Razavi et al., 2019)."""

from typing import ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import Metric
from driftvq.names import in_range
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import Codebook, Lesson, initial_codes
from driftvq.quantizers.codebooks.growth import Rule, between, halved
from driftvq.quantizers.codebooks.sampling import take_over
from driftvq.quantizers.quantizer import register


class AveragedCodes(Codebook):
    """The codes of :class:`EMAVQ`, each the moving average of the latents that selected it: s / ñ.

    Those of unit length, ``ĉ = c / |c|``, start in random directions.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between, "cluster_size": halved}
    training_state = ("cluster_size", "cluster_sum")

    def __init__(self, codebook_size: int, dim: int, decay: float, eps: float, threshold: float, unit: bool) -> None:
        super().__init__()
        self.decay, self.eps, self.threshold, self.unit = decay, eps, threshold, unit
        self.leaves_out = threshold == 0  # a latent that takes over a code has to be finite
        codes_kd = initial_codes(codebook_size, dim)
        self.register_buffer("codes", codes_kd)
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("cluster_sum", codes_kd.clone())
        if unit:
            self.set_(F.normalize(torch.randn(codebook_size, dim), dim=1))

    def forward(self) -> Tensor:
        return F.normalize(self.codes, dim=1) if self.unit else self.codes

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        counts_k, sums_kd, latents_r = lesson.sums(len(self.codes))
        self.cluster_size.lerp_(counts_k.to(self.cluster_size), 1 - self.decay)
        self.cluster_sum.lerp_(sums_kd.to(self.cluster_sum), 1 - self.decay)
        size_k1 = self._smoothed_size()[:, None]
        self.codes.copy_(torch.where(size_k1 > 0, self.cluster_sum / size_k1, self.codes))
        if self.threshold == 0:
            return counts_k
        dead_k, weight_n = self.cluster_size < self.threshold, lesson.weight
        codes_kd, moved_k = take_over(self.codes, dead_k, lesson.latents, weight_n, lesson.step, totals_r=latents_r)
        size_k = torch.where(moved_k, self.threshold, self.cluster_size)
        self.codes.copy_(codes_kd)
        self.cluster_size.copy_(size_k)
        self.cluster_sum.copy_(torch.where(moved_k[:, None], codes_kd * size_k[:, None], self.cluster_sum))
        return counts_k

    def _smoothed_size(self) -> Tensor:
        total = self.cluster_size.sum()
        return (self.cluster_size + self.eps) / (total + len(self.codes) * self.eps) * total

    def busyness(self) -> Tensor:
        return self.cluster_size

    def grown_(self) -> None:
        self.cluster_sum = self.codes * self._smoothed_size()[:, None]

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.codes.copy_(codes_kd)
        self.cluster_size.fill_(max(1.0, self.threshold))
        self.cluster_sum.copy_(codes_kd * self.cluster_size[:, None])


@register("ema_vq")
class EMAVQ(CodebookQuantizer):
    """Each code is the moving average of the latents that selected it; ``loss = β · mse(z, sg c)``.

    ``n_k ← γ n_k + (1-γ) |{i: win(i)=k}|``,  ``s_k ← γ s_k + (1-γ) Σ_{i: win(i)=k} z_i``,  ``c_k = s_k / ñ_k``

    with γ the ``decay`` and ñ the n that is Laplace-smoothed by ``eps``. This is VQVAE2; with
    ``threshold_ema_dead_code`` it is the paper's VQGAN-EMA: a code whose n_k, the average count per batch, falls below
    it moves to a random latent of the batch; 0: none does.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        decay: float = 0.99,
        eps: float = 1e-5,
        threshold_ema_dead_code: float = 0.0,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        if self.estimator.trains_codebook:
            why = f"estimator {options['estimator']!r} trains the codebook, which EMAVQ's moving average would undo"
            raise ValueError(f"{why}; use 'straight_through' or 'rotation', or another quantizer")
        in_range("decay", decay, 0, 1)
        in_range("eps", eps, 0, 1)
        in_range("threshold_ema_dead_code", threshold_ema_dead_code, 0, float("inf"))
        averaging = (decay, eps, threshold_ema_dead_code)
        self._own(AveragedCodes(codebook_size, self.codebook_dim, *averaging, unit=self.metric == "cosine"))


@register("cosine_ema_vq")
class CosineEMAVQ(EMAVQ):
    """Moving averages of directions: codes and latents have unit length and are compared by cosine.

    ``win = argmax_k ẑ·ĉ_k`` with ``ẑ = z/|z|``,  ``ĉ_k = s_k/|s_k|``,  ``loss = β · mse(ẑ, sg ĉ)``

    with s the moving sum of :class:`EMAVQ`, here of the ẑ. The output is the winning code, of unit length.
    """

    metric: ClassVar[Metric] = "cosine"
    own_scale: ClassVar[bool] = True
