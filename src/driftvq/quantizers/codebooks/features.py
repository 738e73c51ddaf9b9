"""Features of a code, over which a drift is a linear field.

Shape suffixes: k codes, p features, d dimensions of a code, w width of the network.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional.blocks import row_blocks


class AffineFeatures(nn.Module):
    """``f(c) = (1, c)`` of a code c in the codebook's frame: linear fields over these are the affine maps."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.count = dim, 1 + dim  # d and p
        self.groups = [1, dim]  # how many features there are of each kind; their mean squares are of order 1

    def forward(self, codes_kd: Tensor) -> Tensor:
        return F.pad(codes_kd, (1, 0), value=1.0)

    def of(self, codes_kd: Tensor, winners_n: Tensor) -> Tensor:
        """The features of selected codes ``(n, p)``."""
        features_np: Tensor = self(F.embedding(winners_n, codes_kd))
        return features_np

    def moved(self, codes_kd: Tensor, field_pd: Tensor) -> Tensor:
        """``f(c) W`` of every code ``(k, d)``, block by block."""
        blocks = row_blocks(len(codes_kd), self.count, codes_kd.device)
        return torch.cat([self(codes_kd[rows]) @ field_pd for rows in blocks])


class NetworkFeatures(AffineFeatures):
    """``f(c) = (1, c, h(c))``: a network h adds what is not affine.

    The ``network`` maps codes ``(k, d)`` to ``(k, width)``, with outputs of order 1; ``together``: h(c_k) depends on
    all codes, so that they are never mapped in parts.
    """

    def __init__(self, dim: int, network: nn.Module, width: int, together: bool) -> None:
        super().__init__(dim)
        self.network, self.together = network, together
        self.count, self.groups = 1 + dim + width, [1, dim, width]

    @property
    def training_state(self) -> tuple[str, ...]:
        """Weights that move codes in training and that evaluation does not see."""
        return tuple(f"network.{name}" for name in self.network.state_dict())

    def forward(self, codes_kd: Tensor) -> Tensor:
        own = next(self.network.parameters()).dtype
        h_kw = self.network(codes_kd.to(own)).to(codes_kd.dtype)
        return torch.cat([super().forward(codes_kd), h_kw], dim=1)

    def of(self, codes_kd: Tensor, winners_n: Tensor) -> Tensor:
        return self.forward(codes_kd)[winners_n] if self.together else super().of(codes_kd, winners_n)

    def moved(self, codes_kd: Tensor, field_pd: Tensor) -> Tensor:
        return self.forward(codes_kd) @ field_pd if self.together else super().moved(codes_kd, field_pd)
