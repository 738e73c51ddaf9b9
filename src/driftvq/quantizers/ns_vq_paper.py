"""NS-VQ as it was published: as printed, as in the authors' code, the ΔE variant, and the authors' sequel.

In all of them a kernel lets each latent reach the codes that it did not select.
"""

import math
from typing import ClassVar, Unpack

from torch import Tensor

from driftvq.names import positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.kernel import KernelCodes, SpreadingCodes
from driftvq.quantizers.estimators import Modified
from driftvq.quantizers.finite import OWN_SCALE
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


class KernelOptions(CodebookOptions, total=False):
    """The options of :class:`NSVQPaper`, which the other forms take as well."""

    bandwidth: float
    bandwidth_decay: float | None
    decay_every: int


@register("ns_vq_paper")
class NSVQPaper(CodebookQuantizer):
    """As printed (the paper, Sec. 3.3 and 4): every latent also pulls the codes it did not select, by gradient.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    averaged over latents and dimensions, so that ``Δc_k ∝ w_k (z - c_k)`` (Eq. 17). The paper prints the second term
    without the square and without a stop-gradient on the weight; only this form has Eq. 17 as its gradient.

    Args:
        bandwidth: 2σ².
        bandwidth_decay: factor applied by ``vq.book.decay_bandwidth_()``, in the paper after each epoch; here 0.9.
        decay_every: decay by itself after so many training steps; 0: leave it to the caller.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; as in the paper, ``kmeans_init`` is on and
            ``estimator`` is ``"modified"``.
    """

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
        self._own(self._codes(bandwidth, self.decay if bandwidth_decay is None else bandwidth_decay, decay_every))

    def _codes(self, bandwidth: float, decay: float, every: int) -> SpreadingCodes:
        return KernelCodes(self.codebook_size, self.codebook_dim, "gaussian", bandwidth, decay, every)

    def _scale(self) -> tuple[float, float]:
        if not self.training or not isinstance(self.book, KernelCodes) or self.book.kernel != "gaussian":
            return super()._scale()
        # A kernel that is wider than all that there is moves all codes as one.
        return OWN_SCALE[0] * self.book.bandwidth.item() ** 0.5, math.inf


@register("ns_vq_published")
class NSVQPublished(NSVQPaper):
    """The authors' published code, which departs from the paper: the loss of :class:`NSVQPaper`, another kernel.

    ``w_k = min(1, 0.01·K · softmax_k(-|z - c_k|² / τ))``

    τ is halved after each epoch, the 2/d of the modified estimator counts dimensions too, and the codes start uniform
    in ±1/K.

    Args:
        options: see :class:`NSVQPaper`; τ is its ``bandwidth``, ``bandwidth_decay`` is 0.5, ``kmeans_init`` is off, and
            ``estimator`` is ``Modified(divisor="elements")``.
    """

    decay = 0.5
    defaults: ClassVar[CodebookOptions] = {"estimator": Modified(divisor="elements")}

    def _codes(self, bandwidth: float, decay: float, every: int) -> SpreadingCodes:
        gain = 0.01 * self.codebook_size
        return KernelCodes(self.codebook_size, self.codebook_dim, "softmax", bandwidth, decay, every, gain)


@register("ns_vq_delta_e")
class NSVQDeltaE(NSVQPaper):
    """The ΔE variant (the paper, Suppl. 10): the decoder's gradient, not the pull toward z, moves the other codes.

    ``quantized = z + sg(c_win - z) + Σ_{k≠win} (w_k c_k - sg(w_k c_k))``,  ``w_k = sg exp(-|z - c_k|² / 2σ²)``  (A14)

    ``loss = mse(sg z, c) + β · mse(z, sg c)``, as in VQ.

    Args:
        options: see :class:`NSVQPaper`; here ``estimator`` is ``"straight_through"``.
    """

    defaults: ClassVar[CodebookOptions] = {"kmeans_init": True}

    def _codes(self, bandwidth: float, decay: float, every: int) -> SpreadingCodes:
        return SpreadingCodes(self.codebook_size, self.codebook_dim, "gaussian", bandwidth, decay, every)

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        selection = super()._select(z_nd, call)
        if not call.trains or self.freeze_codebook or not isinstance(self.book, SpreadingCodes):
            return selection
        spread_nd = self.book.spread(z_nd, self.codebook.to(z_nd.dtype))
        return selection._replace(quantized=selection.quantized + spread_nd)


@register("ns_vq_sequel")
class NSVQSequel(NSVQPaper):
    """The authors' sequel (Lu et al., 2026): :class:`NSVQPaper`'s loss, and lost codes move to latents.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    The third ingredient, an encoder that rests, belongs to the training: ``driftvq train --settle``.

    Args:
        replace_after: whenever a code was not selected for so many steps, it moves to a random latent.
        options: see :class:`NSVQPaper`; here ``estimator`` is ``"straight_through"``.
    """

    defaults: ClassVar[CodebookOptions] = {"kmeans_init": True}

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        replace_after: int = 100,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self.replace_after = positive_int("replace_after", replace_after)

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        self._restart_(z_nd, call, self.replace_after)
        return super()._select(z_nd, call)
