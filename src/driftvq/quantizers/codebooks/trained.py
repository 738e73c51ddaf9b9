"""A codebook that is a parameter, trained by the loss (van den Oord et al., 2017)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.quantizers.codebooks.base import Codebook, initial_codes
from driftvq.quantizers.codebooks.growth import Rule, between


class TrainedCodes(Codebook):
    """Codes as a parameter: the gradient of ``mse(sg z, c)`` moves those that were selected.

    Args:
        codebook_size: K.
        dim: dimension of a code.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"codes": between}
    by_gradient: ClassVar[bool] = True

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(initial_codes(codebook_size, dim))

    @property
    def stored(self) -> Tensor:
        return self.codes

    def forward(self) -> Tensor:
        return self.codes

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.codes.copy_(codes_kd)


class UnitCodes(TrainedCodes):
    """Trained codes of unit length, ``ĉ = c / |c|``, which start in random directions."""

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__(codebook_size, dim)
        self.set_(F.normalize(torch.randn(codebook_size, dim), dim=1))

    def forward(self) -> Tensor:
        return F.normalize(self.codes, dim=1)
