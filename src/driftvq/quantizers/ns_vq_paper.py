"""NS-VQ as it was published: in all its forms a kernel lets each latent reach the codes that it did not select."""

import math
from typing import Any, ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional import Kernel, kernel_codebook_loss, spread_gradient
from driftvq.names import in_range, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import Lesson, Match, TrainedCodes
from driftvq.quantizers.estimators import Modified
from driftvq.quantizers.finite import OWN_SCALE
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.steps import Call, Selection

GAIN_PER_CODE = 0.01  # of the softmax kernel, as in the authors' code; the Gaussian one has none


class SpreadingCodes(TrainedCodes):
    """Trained codes with a kernel whose width decays, see :func:`driftvq.functional.kernel_transfer`."""

    training_state = ("bandwidth",)

    def __init__(
        self, codebook_size: int, dim: int, kernel: Kernel, bandwidth: float, decay: float, every: int, gain: float
    ) -> None:
        super().__init__(codebook_size, dim)
        if bandwidth <= 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
        self.kernel, self.gain = kernel, gain
        self.bandwidth_decay = in_range("bandwidth_decay", decay, 0, 1)
        self.decay_every = int(in_range("decay_every", every, 0, float("inf")))
        self.register_buffer("bandwidth", torch.tensor(float(bandwidth)))

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


@register("ns_vq_paper")
class NSVQPaper(CodebookQuantizer):
    """As printed (the paper, Sec. 3.3 and 4): every latent also pulls the codes it did not select, by gradient.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    averaged over latents and dimensions, so that ``Δc_k ∝ w_k (z - c_k)`` (Eq. 17). The paper prints the second term
    without the square and without a stop-gradient on the weight; only this form has Eq. 17 as its gradient.

    The ``bandwidth``, 2σ², is multiplied by ``bandwidth_decay``, 0.9, by ``vq.book.decay_bandwidth_()``, in the paper
    after each epoch, or by itself after every ``decay_every`` training steps, unless that is 0. As in the paper
    ``kmeans_init`` is on and ``estimator`` is ``"modified"``.
    """

    codes_type: ClassVar[type[SpreadingCodes]] = KernelCodes
    kernel: ClassVar[Kernel] = "gaussian"
    decay: ClassVar[float] = 0.9
    defaults: ClassVar[CodebookOptions] = {"kmeans_init": True, "estimator": "modified"}
    book: SpreadingCodes

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        bandwidth: float = 1.0,
        bandwidth_decay: float | None = None,
        decay_every: int = 0,
        **options: Unpack[CodebookOptions],
    ) -> None:
        options = {**self.defaults, **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        decay = self.decay if bandwidth_decay is None else bandwidth_decay
        kernel = (self.kernel, bandwidth, decay, decay_every, GAIN_PER_CODE * codebook_size)
        self._own(self.codes_type(codebook_size, self.codebook_dim, *kernel))

    def _scale(self) -> tuple[float, float]:
        if not self.training or not isinstance(self.book, KernelCodes) or self.book.kernel != "gaussian":
            return super()._scale()
        # A kernel that is wider than all that there is moves all codes as one.
        return OWN_SCALE[0] * self.book.bandwidth.item() ** 0.5, math.inf


@register("ns_vq_published")
class NSVQPublished(NSVQPaper):
    """The authors' published code, which departs from the paper: the loss of :class:`NSVQPaper`, another kernel.

    ``w_k = min(1, 0.01·K · softmax_k(-|z - c_k|² / τ))``

    τ, the ``bandwidth``, is halved after each epoch (``bandwidth_decay``), the 2/d of the modified estimator counts
    dimensions too (``Modified(divisor="elements")``), and the codes start uniform in ±1/K (``kmeans_init`` is off).
    """

    kernel = "softmax"
    decay = 0.5
    defaults: ClassVar[CodebookOptions] = {"estimator": Modified(divisor="elements")}


@register("ns_vq_delta_e")
class NSVQDeltaE(NSVQPaper):
    """The ΔE variant (the paper, Suppl. 10): the decoder's gradient, not the pull toward z, moves the other codes.

    ``quantized = z + sg(c_win - z) + Σ_{k≠win} (w_k c_k - sg(w_k c_k))``,  ``w_k = sg exp(-|z - c_k|² / 2σ²)``  (A14)

    ``loss = mse(sg z, c) + β · mse(z, sg c)``, as in VQ. Arguments as in :class:`NSVQPaper`, but straight-through.
    """

    codes_type = SpreadingCodes
    defaults: ClassVar[CodebookOptions] = {"kmeans_init": True}

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        selection = super()._select(z_nd, call)
        if not call.trains or self.freeze_codebook or not isinstance(self.book, SpreadingCodes):
            return selection
        book, codes_kd = self.book, self.codebook.to(z_nd.dtype)
        spread_nd = spread_gradient(z_nd, codes_kd, book.kernel, book.bandwidth, book.gain)
        return selection._replace(quantized=selection.quantized + spread_nd)


@register("ns_vq_sequel")
class NSVQSequel(NSVQPaper):
    """The authors' sequel (Lu et al., 2026): :class:`NSVQPaper`'s loss, and lost codes move to latents.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    Whenever a code was not selected for ``replace_after`` steps, it moves to a random latent. Else arguments as in
    :class:`NSVQPaper`, but straight-through. The third ingredient, an encoder that rests, belongs to the training:
    ``driftvq train --settle``.
    """

    defaults: ClassVar[CodebookOptions] = {"kmeans_init": True}

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, *, replace_after: int = 100, **options: Any
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self.restart_after = positive_int("replace_after", replace_after)
