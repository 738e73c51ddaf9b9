"""NSVQ of the paper's authors' sequel (Lu et al., 2026): the dense loss and the replacement of lost codes."""

from typing import Unpack

from torch import Tensor

from driftvq.quantizers.arguments import positive_int
from driftvq.quantizers.codebook import CodebookOptions
from driftvq.quantizers.ns_vq_paper import NSVQPaper
from driftvq.quantizers.registry import register
from driftvq.quantizers.steps import Call, Selection


@register("ns_vq_sequel")
class NSVQSequel(NSVQPaper):
    """:class:`NSVQPaper`'s loss, which pulls every code, and lost codes move to latents.

    ``loss = |sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|² + β |z - sg c_win|²``,  ``w_k = exp(-|z - c_k|² / 2σ²)``

    The third ingredient, an encoder that rests, belongs to the training: ``driftvq train --settle``.

    Args:
        bandwidth, bandwidth_decay, decay_every: see :class:`NSVQPaper`.
        replace_after: whenever a code was not selected for so many steps, it moves to a random latent.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on and
            ``estimator`` is ``"straight_through"``.
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
        replace_after: int = 100,
        **options: Unpack[CodebookOptions],
    ) -> None:
        options = {"estimator": "straight_through", **options}
        super().__init__(
            dim,
            codebook_size,
            codebook_dim,
            bandwidth=bandwidth,
            bandwidth_decay=bandwidth_decay,
            decay_every=decay_every,
            **options,
        )
        self.replace_after = positive_int("replace_after", replace_after)

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        self._restart_(z_nd, call, self.replace_after)
        return super()._select(z_nd, call)
