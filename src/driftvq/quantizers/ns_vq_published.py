"""NS-VQ as in the authors' published code, which departs from the paper."""

from typing import Unpack

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.kernel import KernelCodes
from driftvq.quantizers.estimators import Modified
from driftvq.quantizers.registry import register


@register("ns_vq_published")
class NSVQPublished(CodebookQuantizer):
    """The loss of :class:`driftvq.quantizers.ns_vq_paper.NSVQPaper` with another kernel.

    ``w_k = min(1, 0.01·K · softmax_k(-|z - c_k|² / τ))``

    τ is halved after each epoch, the 2/d of the modified estimator counts dimensions too, and the codes start uniform
    in ±1/K.

    Args:
        bandwidth: τ.
        bandwidth_decay: factor applied by ``vq.book.decay_bandwidth_()``, after each epoch.
        decay_every: decay by itself after so many training steps; 0: leave it to the caller.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``estimator`` is
            ``Modified(divisor="elements")``.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        bandwidth: float = 1.0,
        bandwidth_decay: float = 0.5,
        decay_every: int = 0,
        **options: Unpack[CodebookOptions],
    ) -> None:
        options = {"estimator": Modified(divisor="elements"), **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        gain = 0.01 * codebook_size
        self._own(
            KernelCodes(codebook_size, self.codebook_dim, "softmax", bandwidth, bandwidth_decay, decay_every, gain)
        )
