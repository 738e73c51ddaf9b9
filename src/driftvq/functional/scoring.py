"""Nearest code as the highest score: what of it depends on the codebook alone.

Shape suffixes: n latents, k codes, d dimensions, s sampled codes.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from driftvq.functional.blocks import widest_float

Metric = Literal["l2", "cosine"]
METRICS: tuple[Metric, ...] = ("l2", "cosine")

ORIGIN_SAMPLE = 63
"""Codes whose median is the origin: few cost nothing, and these miss the middle by an eighth of the spread."""

EXPONENT_BITS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}


class Scoring(NamedTuple):
    """``score_k(x) = (x - origin)·weight_k - penalty_k / 2``, highest at the nearest code.

    Args:
        weight_kd: directions of the codes.
        penalty_k: what long codes lose.
        origin_d: subtracted from latents; None where directions are compared, which have an origin of their own.
        size: power of two by which the codes were divided.
    """

    weight_kd: Tensor
    penalty_k: Tensor
    origin_d: Tensor | None
    size: Tensor | None

    def centred(self, x_nd: Tensor) -> Tensor:
        """``x - origin``."""
        return x_nd if self.origin_d is None else x_nd - self.origin_d

    def compared(self, x_nd: Tensor) -> Tensor:
        """Latents whose squared distances to ``weight`` rank the codes as the score does."""
        return unit_rows(x_nd) if self.size is None else self.centred(x_nd).div_(self.size)


def scoring(codebook_kd: Tensor, metric: Metric) -> Scoring:
    """The score of a codebook under a metric.

    ``argmin_k |x - c_k|² = argmax_k (x·c_k - |c_k|²/2)``, for every origin and in every unit of length;
    ``argmax_k x·c_k / (|x||c_k|) = argmax_k x·ĉ_k``, whatever the length of x.
    """
    if metric == "cosine":
        return Scoring(unit_rows(codebook_kd), codebook_kd.new_zeros(len(codebook_kd)), None, None)
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    origin_d = _middle(codebook_kd)
    centred_kd = codebook_kd - origin_d
    # Only the codes are divided: |c|² then neither overflows nor vanishes at any scale of latents and codes.
    size = _power_of_two(centred_kd)
    weight_kd = centred_kd / size
    return Scoring(weight_kd, (weight_kd * centred_kd).sum(dim=1), origin_d, size)


def unit_rows(x_nd: Tensor) -> Tensor:
    """``x / |x|``; zero stays zero. The squares are summed in the widest float, which 1e±18 does not leave."""
    length_n1: Tensor = torch.linalg.vector_norm(x_nd, dim=1, keepdim=True, dtype=widest_float(x_nd.device))
    return x_nd / length_n1.clamp(min=torch.finfo(x_nd.dtype).tiny).to(x_nd.dtype)


def _middle(codebook_kd: Tensor) -> Tensor:
    """Median of a few codes: unlike the mean it stays where most codes are if some are lost far away."""
    codes = len(codebook_kd)
    sample_sd = codebook_kd[:: max(1, codes // ORIGIN_SAMPLE)][:ORIGIN_SAMPLE]
    return sample_sd.sort(dim=0).values[len(sample_sd) // 2]


def _power_of_two(x: Tensor) -> Tensor:
    """The power of two at or below the largest magnitude: division by it is exact."""
    tiny = torch.finfo(x.dtype).tiny
    if torch.compiler.is_exporting():  # other runtimes do not read the bits of a float
        return x.abs().max().clamp(min=tiny)
    integer, exponent = EXPONENT_BITS[x.dtype]
    return x.view(integer).bitwise_and(exponent).amax().view(x.dtype).clamp(min=tiny)
