"""TransVQ as printed (the paper, Sec. 3.4): a frozen codebook, moved by a trained network alone."""

from typing import Unpack

from driftvq.quantizers.arguments import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.networks import CodeMLP, CodeTransformer, Residual
from driftvq.quantizers.codebooks.transformed import TransformedCodes
from driftvq.quantizers.registry import register
from driftvq.quantizers.trans_vq import TransformName


@register("trans_vq_paper")
class TransVQPaper(CodebookQuantizer):
    """The literal form: ``C' = P_φ(C)``; C is the k-means of the first latents and frozen, φ is trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    Args:
        transform: ``"attention"`` (each code a token: linear attention, then an MLP) or ``"mlp"`` (Sec. 6: two layers
            on each code by itself).
        width: model width of the attention form; the MLP's hidden width is ``width × mlp_ratio`` in both forms.
        mlp_ratio: see ``width``.
        residual: ``C' = C + P_φ(C)`` with P_φ zero at the start, instead of ``C' = P_φ(C)``.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on.
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
        residual: bool = False,
        **options: Unpack[CodebookOptions],
    ) -> None:
        one_of("transform", transform, ("attention", "mlp"))
        positive_int("width", width)
        options = {"kmeans_init": True, **options}
        super().__init__(dim, codebook_size, codebook_dim, **options)
        network = (
            CodeMLP(self.codebook_dim, int(width * mlp_ratio))
            if transform == "mlp"
            else CodeTransformer(self.codebook_dim, width, mlp_ratio)
        )
        moved_by = Residual(network) if residual else network
        self._own(TransformedCodes(codebook_size, self.codebook_dim, moved_by))
