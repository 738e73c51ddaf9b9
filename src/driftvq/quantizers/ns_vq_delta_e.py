"""The ΔE variant of NS-VQ (the paper, Suppl. 10): the decoder's gradient is spread over the other codes."""

from typing import Unpack

from torch import Tensor

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.kernel import SpreadingCodes
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("ns_vq_delta_e")
class NSVQDeltaE(CodebookQuantizer):
    """The decoder's gradient, not the pull toward z, moves the codes that were not selected.

    ``quantized = z + sg(c_win - z) + Σ_{k≠win} (w_k c_k - sg(w_k c_k))``,  ``w_k = sg exp(-|z - c_k|² / 2σ²)``  (A14)

    ``loss = mse(sg z, c) + β · mse(z, sg c)``, as in VQ.

    Args:
        bandwidth: 2σ².
        bandwidth_decay: factor applied by ``vq.book.decay_bandwidth_()``, in the paper after each epoch.
        decay_every: decay by itself after so many training steps; 0: leave it to the caller.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on.
    """

    book: SpreadingCodes

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
        options = {"kmeans_init": True, **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self._own(SpreadingCodes(codebook_size, self.codebook_dim, "gaussian", bandwidth, bandwidth_decay, decay_every))

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        selection = super()._select(z_nd, call)
        if not call.trains or self.freeze_codebook or not isinstance(self.book, SpreadingCodes):
            return selection
        spread_nd = self.book.spread(z_nd, self.codebook.to(z_nd.dtype))
        return selection._replace(quantized=selection.quantized + spread_nd)
