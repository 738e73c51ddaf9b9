"""TransVQ (the paper, Sec. 3.4): a small transformer moves the whole codebook."""

from typing import Any, Literal, Self, Unpack

from torch import nn

from driftvq.quantizers.base import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions
from driftvq.quantizers.registry import register
from driftvq.quantizers.transformed import TransformedCodebook
from driftvq.quantizers.transforms import AttentionTransform, MLPTransform

TransformName = Literal["attention", "mlp"]


@register("trans_vq", "paper", "published")
class TransVQ(TransformedCodebook):
    """The codebook in use is ``C' = P_φ(C)`` with a small network P_φ; C is frozen, φ is trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    One step on φ moves every code, so none is left behind by a drifting encoder, and unlike SimVQ's linear map P_φ can
    reach any codebook, the k-means one included. By default C is the k-means of the first latents and P_φ starts as
    the identity.

    Args:
        transform: ``"attention"`` (linear attention, then an MLP) or ``"mlp"`` (each code by itself: nearly as good,
            much faster).
        width: model width of the attention form; the MLP's hidden width is ``width × mlp_ratio`` in both forms.
        mlp_ratio: see ``width``.
        residual: ``C' = C + P_φ(C)`` with P_φ zero at the start, instead of ``C' = P_φ(C)``.
        code_embedding: learn one more vector per code (attention only), as the published code does.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on by default.
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
        residual: bool = True,
        code_embedding: bool = False,
        **options: Unpack[CodebookOptions],
    ) -> None:
        one_of("transform", transform, ("attention", "mlp"))
        positive_int("width", width)
        if code_embedding and transform == "mlp":
            raise ValueError("code_embedding=True needs transform='attention', got transform='mlp'")

        def make_transform(d: int) -> nn.Module:
            if transform == "mlp":
                return MLPTransform(d, int(width * mlp_ratio), residual)
            return AttentionTransform(d, width, mlp_ratio, residual, codebook_size if code_embedding else None)

        options.setdefault("kmeans_init", True)
        super().__init__(dim, codebook_size, codebook_dim, make_transform, **options)

    @classmethod
    def paper(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The paper's literal form: ``C' = P_φ(C)`` without a residual, over a k-means codebook."""
        return cls(dim, codebook_size, codebook_dim, **{"residual": False, **options})

    @classmethod
    def published(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The form of the authors' published code: Gaussian base, a learned vector per code, no residual."""
        form = {"residual": False, "code_embedding": True, "kmeans_init": False}
        return cls(dim, codebook_size, codebook_dim, **{**form, **options})
