"""Trained codes whose loss also moves those that were not selected, by a kernel that narrows (the paper, Sec. 3.3)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import Kernel, kernel_codebook_loss, spread_gradient
from driftvq.names import in_range
from driftvq.quantizers.codebooks.base import Lesson, Match
from driftvq.quantizers.codebooks.trained import TrainedCodes


class SpreadingCodes(TrainedCodes):
    """Trained codes, and the ΔE term ``Σ_{k≠win} (w_k c_k - sg(w_k c_k))`` for those not selected (Suppl. 10).

    Args:
        codebook_size: K.
        dim: dimension of a code.
        kernel: ``"gaussian"`` or ``"softmax"``.
        bandwidth: 2σ², or the temperature of the softmax.
        bandwidth_decay: factor applied by :meth:`decay_bandwidth_`.
        decay_every: decay by itself after so many training steps (an epoch, in the paper); 0: leave it to the caller.
        gain: factor of the softmax.

    Attributes:
        bandwidth: the current bandwidth.
    """

    training_state: ClassVar[tuple[str, ...]] = ("bandwidth",)
    bandwidth: Tensor

    def __init__(
        self,
        codebook_size: int,
        dim: int,
        kernel: Kernel,
        bandwidth: float,
        bandwidth_decay: float,
        decay_every: int,
        gain: float = 1.0,
    ) -> None:
        super().__init__(codebook_size, dim)
        if bandwidth <= 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
        self.kernel, self.gain = kernel, gain
        self.bandwidth_decay = in_range("bandwidth_decay", bandwidth_decay, 0, 1)
        self.decay_every = int(in_range("decay_every", decay_every, 0, float("inf")))
        self.register_buffer("bandwidth", torch.tensor(float(bandwidth)))

    def spread(self, z_nd: Tensor, codes_kd: Tensor) -> Tensor:
        """The ΔE term: zero ``(n, d)``, with a gradient for the codes that were not selected."""
        return spread_gradient(z_nd, codes_kd, self.kernel, self.bandwidth, self.gain)

    @torch.no_grad()
    def decay_bandwidth_(self) -> None:
        """Narrow the kernel by ``bandwidth_decay``; the paper does so after each epoch."""
        self.bandwidth.mul_(self.bandwidth_decay)

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        if self.decay_every > 0:
            due = (lesson.step + 1) % self.decay_every == 0
            self.bandwidth.mul_(torch.where(due, self.bandwidth_decay, 1.0))
        return super().learn_(lesson)

    def readings(self) -> dict[str, float]:
        return {"bandwidth": self.bandwidth.item()}


class KernelCodes(SpreadingCodes):
    """``L = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|²``, whose gradient is Eq. 17."""

    takes_choices: ClassVar[bool] = False

    def match(self, z_nd: Tensor, codes_kd: Tensor, valid_n: Tensor | None, choices_n: Tensor | None = None) -> Match:
        if not self.training or not codes_kd.requires_grad:
            return super().match(z_nd, codes_kd, valid_n)
        loss, winners_n = kernel_codebook_loss(z_nd, codes_kd, self.kernel, self.bandwidth, self.gain, valid_n)
        return Match(winners_n, F.embedding(winners_n, codes_kd), loss)
