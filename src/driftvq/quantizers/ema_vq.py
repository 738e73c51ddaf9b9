"""Codebook by exponential moving averages (van den Oord et al., 2017, App. A; Razavi et al., 2019)."""

from typing import ClassVar, Unpack

import torch
from torch import Tensor

from driftvq.functional import nearest
from driftvq.quantizers.base import in_range
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer, initial_codebook, restart_codes_
from driftvq.quantizers.growth import Rule, between, halved
from driftvq.quantizers.registry import register
from driftvq.quantizers.sync import sum_over_processes


@register("ema_vq")
class EMAVQ(CodebookQuantizer):
    """Each code is the moving average of the latents that selected it.

    ``n_k ← γ n_k + (1-γ) |{i: win(i)=k}|``,  ``s_k ← γ s_k + (1-γ) Σ_{i: win(i)=k} z_i``,  ``c_k = s_k / ñ_k``

    with ñ the Laplace-smoothed n. ``loss = β · mse(z, sg c)``. This is VQVAE2; with ``threshold_ema_dead_code`` it is
    the paper's VQGAN-EMA: a code whose n_k falls below the threshold moves to a random latent of the batch.

    Args:
        decay: γ.
        eps: Laplace smoothing.
        threshold_ema_dead_code: replace codes whose average count per batch is below this; 0: never.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    codes: Tensor
    cluster_size: Tensor
    cluster_sum: Tensor
    rows_per_code: ClassVar[dict[str, Rule]] = {
        **CodebookQuantizer.rows_per_code,
        "codes": between,
        "cluster_size": halved,
    }

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
            raise ValueError(
                f"estimator {options['estimator']!r} trains the codebook, which EMAVQ's moving average would undo; "
                "use 'straight_through' or 'rotation', or another quantizer"
            )
        self.decay = in_range("decay", decay, 0, 1)
        self.eps = in_range("eps", eps, 0, 1)
        self.threshold_ema_dead_code = in_range("threshold_ema_dead_code", threshold_ema_dead_code, 0, float("inf"))
        codes_kd = initial_codebook(codebook_size, self.codebook_dim)
        self.register_buffer("codes", codes_kd)
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("cluster_sum", codes_kd.clone())

    @property
    def codebook(self) -> Tensor:
        return self.codes

    def _match(self, z_nd: Tensor, codebook_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        return nearest(z_nd, codebook_kd), z_nd.new_zeros(())

    @torch.no_grad()
    def _update_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        counts_k, sums_kd = winner_moments(z_nd, winners_n, valid_n, self.codebook_size)
        self.cluster_size.lerp_(counts_k.to(self.cluster_size.dtype), 1 - self.decay)
        self.cluster_sum.lerp_(sums_kd.to(self.cluster_sum.dtype), 1 - self.decay)
        self.codes.copy_(self.cluster_sum / self._smoothed_size()[:, None])
        if self.threshold_ema_dead_code > 0:
            self._replace_dead_(z_nd, valid_n)

    def _smoothed_size(self) -> Tensor:
        total = self.cluster_size.sum()
        return (self.cluster_size + self.eps) / (total + self.codebook_size * self.eps) * total

    def _replace_dead_(self, z_nd: Tensor, valid_n: Tensor | None) -> None:
        dead_k = self.cluster_size < self.threshold_ema_dead_code
        moved_k = restart_codes_(self.codes, dead_k, z_nd, valid_n, self.step)
        size_k = torch.where(moved_k, self.threshold_ema_dead_code, self.cluster_size)
        self.cluster_size.copy_(size_k)
        self.cluster_sum.copy_(torch.where(moved_k[:, None], self.codes * size_k[:, None], self.cluster_sum))

    def _busyness(self) -> Tensor:
        return self.cluster_size

    def _grown_(self) -> None:
        self.cluster_sum = self.codes * self._smoothed_size()[:, None]

    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        self.codes.copy_(codebook_kd)
        self.cluster_size.fill_(max(1.0, self.threshold_ema_dead_code))
        self.cluster_sum.copy_(codebook_kd * self.cluster_size[:, None])


def winner_moments(
    z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None, codebook_size: int
) -> tuple[Tensor, Tensor]:
    """Number and sum of the valid latents that selected each code, over all processes: ``(k,)`` and ``(k, d)``."""
    weight_n = z_nd.new_ones(len(z_nd)) if valid_n is None else valid_n.to(z_nd.dtype)
    counts_k = z_nd.new_zeros(codebook_size).index_add_(0, winners_n, weight_n)
    sums_kd = z_nd.new_zeros(codebook_size, z_nd.shape[1]).index_add_(0, winners_n, z_nd * weight_n[:, None])
    counts_k, sums_kd = sum_over_processes(counts_k, sums_kd)
    return counts_k, sums_kd
