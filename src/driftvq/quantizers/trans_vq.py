"""TransVQ (the paper, Sec. 3.4): a small network moves the whole codebook."""

from collections.abc import Sequence
from typing import Literal, Unpack

from driftvq.names import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.drift import Drift
from driftvq.quantizers.codebooks.features import NetworkFeatures
from driftvq.quantizers.codebooks.following import PARTS, FollowingCodes, default_commitment, make_parts
from driftvq.quantizers.codebooks.networks import BoundedLayer, CodeTokens
from driftvq.quantizers.quantizer import register

TransformName = Literal["attention", "mlp"]


@register("trans_vq")
class TransVQ(CodebookQuantizer):
    """A small network P_φ moves the whole codebook: one step of it moves every code, selected or not.

    ``P_φ(c) = c + g · s · f(c) (W + V)``  with  ``f(c) = (1, c̄/√d, h_φ(c̄)/√w)``

    P_φ has the residual path of the paper's network, its body h_φ, and a last layer W + V that is *solved*, on
    remembered moments, instead of trained by small steps: so it follows the encoder from the first steps on
    (:class:`driftvq.quantizers.codebooks.drift.Drift`). Without h_φ the field is that of
    :class:`driftvq.quantizers.ns_vq.NSVQ`; with it, codes that lie apart can move apart. φ itself is trained by the
    embedding loss of the codes moved on by the rest of the field, ``mse(sg z, c + (1 - g) · s · f(c) (W + V))``, whose
    gradient does not depend on the scale of the latents. Then winners and lost codes move as in NSVQ. In evaluation the
    codebook is what the latest step left: look-up needs no network.

    The literal form of the paper is :class:`driftvq.quantizers.transformed_vq.TransVQPaper`.

    Args:
        transform: ``"attention"`` (each code a token: linear attention, then an MLP) or ``"mlp"`` (a hidden layer on
            each code by itself: much faster).
        width: w, the number of features that h_φ gives.
        mlp_ratio: hidden width of the MLP behind the attention, over the width; ``"mlp"`` has none.
        parts: which of ``"drift"``, ``"winners"`` and ``"relocation"`` act; an ablation leaves one out.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on by default and
            ``commitment_weight`` is :func:`driftvq.quantizers.codebooks.following.default_commitment`.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        transform: TransformName = "attention",
        width: int = 256,
        mlp_ratio: float = 2,
        parts: Sequence[str] = PARTS,
        **options: Unpack[CodebookOptions],
    ) -> None:
        one_of("transform", transform, ("attention", "mlp"))
        code_dim = dim if codebook_dim is None else codebook_dim
        options = {"kmeans_init": True, "commitment_weight": default_commitment(code_dim), **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        moved_by = make_parts(parts, lambda: Drift(self._features(transform, positive_int("width", width), mlp_ratio)))
        self._own(FollowingCodes(codebook_size, self.codebook_dim, moved_by, self.estimator.trains_codebook))

    def _features(self, transform: TransformName, width: int, mlp_ratio: float) -> NetworkFeatures:
        dim, together = self.codebook_dim, transform == "attention"
        network = CodeTokens(dim, width, mlp_ratio) if together else BoundedLayer(dim, width)
        return NetworkFeatures(dim, network, width, together)
