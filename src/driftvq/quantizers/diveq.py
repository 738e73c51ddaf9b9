"""DiVeQ and its space-filling form (Vali et al., 2025): a step to the code whose length is differentiated."""

from typing import ClassVar, Unpack

import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import nearest
from driftvq.quantizers.codebook import CodebookQuantizer, OptionsButEstimator
from driftvq.quantizers.codebooks.base import Match, TrainedCodes
from driftvq.quantizers.estimators import Directional, SpaceFilling
from driftvq.quantizers.quantizer import register


class DecodedCodes(TrainedCodes):
    """Trained codes without a loss of their own: the decoder's gradient moves them."""

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        winners_n = nearest(z_nd, codes_kd) if choices_n is None else choices_n
        return Match(winners_n, F.embedding(winners_n, codes_kd))


@register("diveq")
class DiVeQ(CodebookQuantizer):
    """The step to the nearest code, ``q = z + |c - z| · sg(v/|v|)``, ``v = c - z + noise``, and no loss of its own.

    The gradient reaches latent and code through the length of the step.

    Args:
        variance: of the noise, in mean squared quantization errors of the batch.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``commitment_weight`` is 0 and
            ``kmeans_init`` is on.
    """

    way: ClassVar[type[Directional]] = Directional

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        variance: float = 1e-3,
        **options: Unpack[OptionsButEstimator],
    ) -> None:
        options = {"commitment_weight": 0.0, "kmeans_init": True, **options}
        super().__init__(dim, codebook_size, codebook_dim, estimator=self.way(variance), **options)
        self._own(DecodedCodes(codebook_size, self.codebook_dim))


@register("sf_diveq")
class SFDiVeQ(DiVeQ):
    """DiVeQ in training to the polyline ``c_1 c_2 … c_K`` instead of its corners; in evaluation to the nearest code.

    ``q = z + (1-λ) |c_i - z| · sg(v_i/|v_i|) + λ |c_{i+1} - z| · sg(v_{i+1}/|v_{i+1}|)``

    i is the nearest of the points ``(1-λ_k) c_k + λ_k c_{k+1}``, one on each segment, λ drawn uniformly at every step.
    """

    way = SpaceFilling
