"""SimVQ (Zhu et al., 2024): a frozen codebook times a trained matrix."""

from typing import Unpack

from torch import nn

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.transformed import TransformedCodes
from driftvq.quantizers.registry import register


@register("sim_vq")
class SimVQ(CodebookQuantizer):
    """The codebook in use is ``C' = C Wᵀ``; W is trained, C is frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    A linear map cannot reach every codebook (in one dimension C' = wC), so k-means is not a limit of its training.

    Args:
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        linear = nn.Linear(self.codebook_dim, self.codebook_dim, bias=False)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, linear))
