"""A codebook of exponential moving averages (van den Oord et al., 2017, App. A; Razavi et al., 2019)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.quantizers.codebooks.base import Codebook, Lesson, initial_codes
from driftvq.quantizers.codebooks.growth import Rule, between, halved
from driftvq.quantizers.codebooks.sampling import take_over


class AveragedCodes(Codebook):
    """Each code is the moving average of the latents that selected it.

    ``n_k ← γ n_k + (1-γ) |{i: win(i)=k}|``,  ``s_k ← γ s_k + (1-γ) Σ_{i: win(i)=k} z_i``,  ``c_k = s_k / ñ_k``

    with ñ the Laplace-smoothed n.

    Args:
        codebook_size: K.
        dim: dimension of a code.
        decay: γ.
        eps: Laplace smoothing.
        threshold: a code whose n_k falls below it moves to a random latent of the batch; 0: never.

    Attributes:
        cluster_size: n ``(k,)``.
        cluster_sum: s ``(k, d)``.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between, "cluster_size": halved}
    training_state: ClassVar[tuple[str, ...]] = ("cluster_size", "cluster_sum")
    codes: Tensor
    cluster_size: Tensor
    cluster_sum: Tensor

    def __init__(self, codebook_size: int, dim: int, decay: float, eps: float, threshold: float) -> None:
        super().__init__()
        self.decay, self.eps, self.threshold = decay, eps, threshold
        self.leaves_out = threshold == 0  # a latent that takes over a code has to be finite
        codes_kd = initial_codes(codebook_size, dim)
        self.register_buffer("codes", codes_kd)
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("cluster_sum", codes_kd.clone())

    @property
    def stored(self) -> Tensor:
        return self.codes

    def forward(self) -> Tensor:
        return self.codes

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        counts_k, sums_kd, latents_r = lesson.sums(len(self.codes))
        self.cluster_size.lerp_(counts_k.to(self.cluster_size), 1 - self.decay)
        self.cluster_sum.lerp_(sums_kd.to(self.cluster_sum), 1 - self.decay)
        self.codes.copy_(self.cluster_sum / self._smoothed_size()[:, None])
        if self.threshold > 0:
            self._replace_dead_(lesson, latents_r)
        return counts_k

    def _smoothed_size(self) -> Tensor:
        total = self.cluster_size.sum()
        return (self.cluster_size + self.eps) / (total + len(self.codes) * self.eps) * total

    def _replace_dead_(self, lesson: Lesson, latents_r: Tensor) -> None:
        dead_k = self.cluster_size < self.threshold
        codes_kd, moved_k = take_over(
            self.codes, dead_k, lesson.latents, lesson.weight, lesson.step, totals_r=latents_r
        )
        size_k = torch.where(moved_k, self.threshold, self.cluster_size)
        self.codes.copy_(codes_kd)
        self.cluster_size.copy_(size_k)
        self.cluster_sum.copy_(torch.where(moved_k[:, None], codes_kd * size_k[:, None], self.cluster_sum))

    def busyness(self) -> Tensor:
        return self.cluster_size

    def grown_(self) -> None:
        self.cluster_sum = self.codes * self._smoothed_size()[:, None]

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.codes.copy_(codes_kd)
        self.cluster_size.fill_(max(1.0, self.threshold))
        self.cluster_sum.copy_(codes_kd * self.cluster_size[:, None])


class UnitAveragedCodes(AveragedCodes):
    """Moving averages of unit latents as codes of unit length, ``ĉ = c / |c|``, which start in random directions."""

    def __init__(self, codebook_size: int, dim: int, decay: float, eps: float, threshold: float) -> None:
        super().__init__(codebook_size, dim, decay, eps, threshold)
        self.set_(F.normalize(torch.randn(codebook_size, dim), dim=1))

    def forward(self) -> Tensor:
        return F.normalize(self.codes, dim=1)
