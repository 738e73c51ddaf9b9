"""Codebook by exponential moving averages (van den Oord et al., 2017, App. A; Razavi et al., 2019)."""

from typing import ClassVar, Unpack

import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import Metric
from driftvq.names import in_range
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.averaged import AveragedCodes, UnitAveragedCodes
from driftvq.quantizers.registry import register


@register("ema_vq")
class EMAVQ(CodebookQuantizer):
    """Each code is the moving average of the latents that selected it; ``loss = β · mse(z, sg c)``.

    ``n_k ← γ n_k + (1-γ) |{i: win(i)=k}|``,  ``s_k ← γ s_k + (1-γ) Σ_{i: win(i)=k} z_i``,  ``c_k = s_k / ñ_k``

    with ñ the Laplace-smoothed n. This is VQVAE2; with ``threshold_ema_dead_code`` it is the paper's VQGAN-EMA: a code
    whose n_k falls below the threshold moves to a random latent of the batch.

    Args:
        decay: γ.
        eps: Laplace smoothing.
        threshold_ema_dead_code: replace codes whose average count per batch is below this; 0: never.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    averaged: ClassVar[type[AveragedCodes]] = AveragedCodes

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
        in_range("decay", decay, 0, 1)
        in_range("eps", eps, 0, 1)
        in_range("threshold_ema_dead_code", threshold_ema_dead_code, 0, float("inf"))
        self._own(self.averaged(codebook_size, self.codebook_dim, decay, eps, threshold_ema_dead_code))


@register("cosine_ema_vq")
class CosineEMAVQ(EMAVQ):
    """Moving averages of directions: codes and latents have unit length and are compared by cosine.

    ``win = argmax_k ẑ·ĉ_k`` with ``ẑ = z/|z|``,  ``ĉ_k = s_k/|s_k|``,  ``loss = β · mse(ẑ, sg ĉ)``

    with s the moving sum of :class:`EMAVQ`, here of the ẑ. The output is the winning code, of unit length.

    Args:
        decay, eps, threshold_ema_dead_code, options: see :class:`EMAVQ`.
    """

    metric: ClassVar[Metric] = "cosine"
    own_scale: ClassVar[bool] = True
    averaged: ClassVar[type[AveragedCodes]] = UnitAveragedCodes

    def to_code_space(self, z_nd: Tensor) -> Tensor:
        return F.normalize(z_nd, dim=1)
