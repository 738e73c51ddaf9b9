"""The gradient estimators as objects that any quantizer with a codebook takes by name or instance."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import gumbel_softmax, masked_mse, nearest
from driftvq.functional.gradients import directional, modified_straight_through, rotate, straight_through
from driftvq.names import check_name
from driftvq.quantizers.codebooks.base import Match
from driftvq.quantizers.distributed import world_size


class Estimator:
    """Turns a choice of codes into an output with a gradient."""

    trains_codebook: ClassVar[bool] = False  # whether the decoder's gradient reaches the codebook, then a trained one

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

    The divisor d is ``"latents"`` (valid positions of the batch, the paper; times the number of processes, which is
    exact where each has as many), ``"elements"`` (times the dimension, the published code) or a number, which makes
    gradient accumulation exact.
    """

    trains_codebook: ClassVar[bool] = True
    divisor: Literal["latents", "elements"] | float = "latents"

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        if not isinstance(self.divisor, str):
            return match.winners, modified_straight_through(z_nd, match.codes, self.divisor)
        rows = max(len(z_nd), 1) if match.valid is None else match.valid.sum().clamp(min=1)
        # Gradients are averaged over processes, so d counts the latents of all, as if each had as many: no message.
        each = world_size() * (1 if self.divisor == "latents" else z_nd.shape[1])
        return match.winners, modified_straight_through(z_nd, match.codes, rows * each)


@dataclass(frozen=True)
class Gumbel(Estimator):
    """Straight-through Gumbel-softmax over the codes, in training; the nearest code in evaluation.

    The logits are ``-|z - c_k|² / s`` with s the batch's mean squared distance to the nearest code, so that the spread
    of the choice does not depend on the scale of the latents.
    """

    trains_codebook: ClassVar[bool] = True
    temperature: float = 1.0

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        seed = torch.randint(2**62, (), device=z_nd.device)
        codebook_kd = codebook_kd.clone()  # an online update may move the codes before the backward pass
        return gumbel_softmax(z_nd, *_logits(z_nd, codebook_kd, match, 1.0), codebook_kd, self.temperature, seed)


@dataclass(frozen=True)
class Directional(Estimator):
    """DiVeQ: a step from the latent towards its code, of a length that is differentiated in both.

    The one estimator, with :class:`SpaceFilling`, whose output in training is not exactly a code: the noise, whose
    ``variance`` is in mean squared quantization errors of the batch, turns the step. In evaluation it is.
    """

    trains_codebook: ClassVar[bool] = True
    variance: float = 1e-3

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        return match.winners, directional(z_nd, match.codes, self._noise(z_nd, match.codes, match.valid))

    def _noise(self, z_nd: Tensor, codes_nd: Tensor, valid_n: Tensor | None) -> Tensor:
        away_nd = (z_nd - codes_nd).detach()
        if valid_n is not None:
            away_nd = torch.where(valid_n[:, None], away_nd, 0)
        if away_nd.numel() == 0:
            return away_nd
        largest = away_nd.abs().amax().clamp(min=torch.finfo(away_nd.dtype).tiny)  # squares of large ones overflow
        square = masked_mse(away_nd / largest, torch.zeros_like(away_nd), valid_n)
        return torch.randn_like(z_nd) * (square.mul(self.variance).sqrt() * largest)


@dataclass(frozen=True)
class SpaceFilling(Directional):
    """SF-DiVeQ: steps to a random point of the nearest segment between codes k and k + 1.

    Each segment is represented by one point, drawn anew at every step; the output is that point but for the noise. The
    indices are those of the nearest codes.
    """

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        segments = max(len(codebook_kd) - 1, 1)  # s of them; a single code is one of length 0
        from_sd, to_sd = codebook_kd[:segments], codebook_kd[-segments:]
        share_s1 = torch.rand(segments, 1, dtype=z_nd.dtype, device=z_nd.device)
        segments_n = nearest(z_nd, torch.lerp(from_sd.detach(), to_sd.detach(), share_s1))
        share_n1 = F.embedding(segments_n, share_s1)
        ends = (F.embedding(segments_n, from_sd), F.embedding(segments_n, to_sd))
        here_nd, there_nd = (directional(z_nd, end_nd, self._noise(z_nd, end_nd, match.valid)) for end_nd in ends)
        return match.winners, torch.lerp(here_nd, there_nd, share_n1)


@dataclass(frozen=True)
class Sampled(Estimator):
    """In training a code is drawn at random, the nearer the likelier; the gradient passes to the encoder unchanged.

    ``k ~ softmax_k(-|z - c_k|² / (T s))`` with s the batch's mean squared distance to the nearest code and T the
    temperature; to anneal it, set another estimator. Codes learn from the latents that they are nearest to. In
    evaluation the nearest code is taken.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature!r}")

    def __call__(self, z_nd: Tensor, codebook_kd: Tensor, match: Match) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits = _logits(z_nd, codebook_kd, match, self.temperature)
            seed = torch.randint(2**62, (), device=z_nd.device)
            indices_n, codes_nd = gumbel_softmax(z_nd, *logits, codebook_kd, 1.0, seed)
        return indices_n, straight_through(z_nd, codes_nd)


def _logits(z_nd: Tensor, codebook_kd: Tensor, match: Match, temperature: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of ``-|z - c_k|² / (T s)``, up to what is the same for all codes.

    By the codes less their mean, ``c̄``, as far from the origin nothing would be left of their differences. s is no less
    than what these products are rounded to: below that there is nothing to choose by.
    """
    with torch.no_grad():
        precision, mean_d = torch.finfo(z_nd.dtype), codebook_kd.mean(dim=0)
        spread, size = ((codes.square().sum(dim=1).mean()).sqrt() for codes in (codebook_kd - mean_d, codebook_kd))
        scale = (masked_mse(z_nd, match.codes, match.valid) * z_nd.shape[1]).maximum(precision.eps * spread * size)
        scale = (scale * temperature).clamp(min=precision.tiny**0.5)
    centred_kd = codebook_kd - mean_d
    return centred_kd * (2 / scale), -(centred_kd * (centred_kd + 2 * mean_d)).sum(dim=1) / scale


ESTIMATORS: dict[str, type[Estimator]] = {
    "straight_through": StraightThrough, "rotation": Rotation, "modified": Modified, "gumbel": Gumbel,
    "directional": Directional, "space_filling": SpaceFilling, "sampled": Sampled,
}  # fmt: skip


def make_estimator(estimator: str | Estimator) -> Estimator:
    """An estimator by name, or the given one."""
    if isinstance(estimator, Estimator):
        return estimator
    return ESTIMATORS[check_name("estimator", str(estimator), ESTIMATORS)]()
