"""Factorised codes (Yu et al., 2022: ViT-VQGAN): the paper's VQGAN-FC."""

from typing import ClassVar, Unpack

import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import Metric
from driftvq.quantizers.arguments import positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.trained import UnitCodes
from driftvq.quantizers.registry import register


@register("factorized_vq")
class FactorizedVQ(CodebookQuantizer):
    """Latents are projected to a few dimensions and compared with the codes by cosine.

    ``win = argmax_k ẑ·ĉ_k`` with ``ẑ = W z / |W z|``;  ``loss = mse(sg ẑ, ĉ) + β · mse(ẑ, sg ĉ)``

    Codes and latents have unit length; the output is the winning code, projected back to ``dim``.

    Args:
        codebook_dim: dimension of the codes, 8 unless ``dim`` is smaller.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    metric: ClassVar[Metric] = "cosine"

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(
            dim, codebook_size, min(positive_int("dim", dim), 8) if codebook_dim is None else codebook_dim, **options
        )
        self._own(UnitCodes(codebook_size, self.codebook_dim))

    def to_code_space(self, z_nd: Tensor) -> Tensor:
        return F.normalize(z_nd, dim=1)
