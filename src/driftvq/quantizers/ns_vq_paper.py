"""NS-VQ as printed (the paper, Sec. 3.3 and 4): a Gaussian kernel pulls the codes that were not selected."""

from typing import Unpack

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.kernel import KernelCodes
from driftvq.quantizers.registry import register


@register("ns_vq_paper")
class NSVQPaper(CodebookQuantizer):
    """The literal form: every latent also pulls the codes it did not select, by gradient.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    averaged over latents and dimensions, so that ``Δc_k ∝ w_k (z - c_k)`` (Eq. 17). The paper prints the second term
    without the square and without a stop-gradient on the weight; only this form has Eq. 17 as its gradient.

    Args:
        bandwidth: 2σ².
        bandwidth_decay: factor applied by ``vq.book.decay_bandwidth_()``, in the paper after each epoch.
        decay_every: decay by itself after so many training steps; 0: leave it to the caller.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; as in the paper, ``kmeans_init`` is on and
            ``estimator`` is ``"modified"``.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        bandwidth: float = 1.0,
        bandwidth_decay: float = 0.9,
        decay_every: int = 0,
        **options: Unpack[CodebookOptions],
    ) -> None:
        options = {"kmeans_init": True, "estimator": "modified", **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self._own(KernelCodes(codebook_size, self.codebook_dim, "gaussian", bandwidth, bandwidth_decay, decay_every))
