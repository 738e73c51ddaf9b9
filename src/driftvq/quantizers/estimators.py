"""The gradient estimators as objects that any quantizer with a codebook takes by name or instance.

Shape suffixes: n latents, k codes, d dimensions.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from driftvq.functional import gumbel_softmax, masked_mse, modified_straight_through, rotate, straight_through
from driftvq.names import check_name
from driftvq.quantizers.codebooks.base import Match
from driftvq.quantizers.distributed import world_size


class Estimator:
    """Turns a choice of codes into an output with a gradient."""

    trains_codebook: ClassVar[bool] = False
    """Whether the decoder's gradient reaches the codebook, which then has to be a trained one."""

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        """Indices ``(n,)``, matched or sampled, and their codes ``(n, d)``, with the estimator's gradient."""
        raise NotImplementedError


class StraightThrough(Estimator):
    """The gradient passes to the encoder unchanged."""

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        return match.winners, straight_through(z_nd, match.codes)


class Rotation(Estimator):
    """The gradient is rotated and scaled as the latent is to reach its code."""

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        return match.winners, rotate(z_nd, match.codes)


@dataclass(frozen=True)
class Modified(Estimator):
    """The paper's estimator: the winning code receives 2/d of the gradient as well.

    Args:
        divisor: d: ``"latents"`` (batch × positions over all processes, the paper), ``"elements"`` (times the
            dimension, the published code) or a number; a fixed number makes gradient accumulation exact.
    """

    trains_codebook: ClassVar[bool] = True
    divisor: Literal["latents", "elements"] | float = "latents"

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        return match.winners, modified_straight_through(z_nd, match.codes, self._divisor(z_nd))

    def _divisor(self, z_nd: Tensor) -> float:
        if not isinstance(self.divisor, str):
            return self.divisor
        # Gradients are averaged over processes, so d counts the latents of all of them.
        size = z_nd.shape[0] if self.divisor == "latents" else z_nd.numel()
        return max(size * world_size(), 1)


@dataclass(frozen=True)
class Gumbel(Estimator):
    """Straight-through Gumbel-softmax over the codes, in training; the nearest code in evaluation.

    The logits are ``-|z - c_k|² / s`` with s the batch's mean squared distance to the nearest code, so that the spread
    of the choice does not depend on the scale of the latents.

    Args:
        temperature: τ of the softmax.
    """

    trains_codebook: ClassVar[bool] = True
    temperature: float = 1.0

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scale = masked_mse(z_nd, match.codes) * z_nd.shape[1]
            scale = scale.clamp(min=torch.finfo(z_nd.dtype).tiny ** 0.5)
            seed = torch.randint(2**62, ())
        codebook_kd = codebook_kd.clone()  # an online update may move the codes before the backward pass
        weight_kd = codebook_kd * (2 / scale)
        bias_k = -codebook_kd.square().sum(dim=1) / scale
        indices_n, codes_nd = gumbel_softmax(z_nd, weight_kd, bias_k, codebook_kd, self.temperature, seed)
        return indices_n, codes_nd


ESTIMATORS: dict[str, type[Estimator]] = {
    "straight_through": StraightThrough,
    "rotation": Rotation,
    "modified": Modified,
    "gumbel": Gumbel,
}


def make_estimator(estimator: str | Estimator) -> Estimator:
    """An estimator by name, or the given one."""
    if isinstance(estimator, Estimator):
        return estimator
    return ESTIMATORS[check_name("estimator", str(estimator), ESTIMATORS)]()
