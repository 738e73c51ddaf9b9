"""SimVQ (Zhu et al., 2024): a frozen codebook times a trained matrix."""

from typing import Unpack

from torch import nn

from driftvq.quantizers.codebook import CodebookOptions
from driftvq.quantizers.registry import register
from driftvq.quantizers.transformed import TransformedCodebook


@register("sim_vq")
class SimVQ(TransformedCodebook):
    """The codebook in use is ``C' = C Wᵀ``; W is trained, C is frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    A linear map cannot reach every codebook (in one dimension C' = wC), so k-means is not a limit of its training.

    Args:
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, lambda d: nn.Linear(d, d, bias=False), **options)
