"""Nearest codes that are trained by gradient alone."""

from typing import Any, ClassVar, Unpack

from torch import Tensor

from driftvq.functional import Metric, orthogonal_loss
from driftvq.names import in_range, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import TrainedCodes, UnitCodes
from driftvq.quantizers.estimators import Directional, SpaceFilling
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.steps import Call, Selection


@register("vq")
class VQ(CodebookQuantizer):
    """The quantizer of the VQ-VAE (van den Oord et al., 2017): nearest code, codebook trained by gradient.

    ``loss = mse(sg z, c) + β · mse(z, sg c) [+ w · (|ĈĈᵀ|² - K) / K²]``

    β is ``commitment_weight`` and stands on the encoder's term; w, the ``orthogonal_weight``, is that of the term that
    spreads the directions of the codes. A code that was not selected for ``restart_after`` steps moves to a random
    latent, as in SoundStream; 0: none does.

    >>> vq = VQ(dim=64, codebook_size=1024, channel_first=True)
    >>> quantized, indices, loss = vq(torch.randn(2, 64, 8, 8))
    >>> indices.shape
    torch.Size([2, 8, 8])
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        orthogonal_weight: float = 0.0,
        restart_after: int = 0,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self.orthogonal_weight = in_range("orthogonal_weight", orthogonal_weight, 0, float("inf"))
        self.restart_after = int(in_range("restart_after", restart_after, 0, float("inf")))
        self._own(TrainedCodes(codebook_size, self.codebook_dim))

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        selection = super()._select(z_nd, call)
        if self.orthogonal_weight == 0:
            return selection
        term = orthogonal_loss(self.codebook.clone() if call.trains else self.codebook.detach())
        loss, terms = selection.loss + self.orthogonal_weight * term, selection.terms or {}
        return selection._replace(loss=loss, terms={**terms, "orthogonality": term})


@register("factorized_vq")
class FactorizedVQ(CodebookQuantizer):
    """Factorised codes (Yu et al., 2022: ViT-VQGAN), the paper's VQGAN-FC: few dimensions, compared by cosine.

    ``win = argmax_k ẑ·ĉ_k`` with ``ẑ = W z / |W z|``;  ``loss = mse(sg ẑ, ĉ) + β · mse(ẑ, sg ĉ)``

    Codes and latents have unit length; the output is the winning code, projected back to ``dim``. By default
    ``codebook_dim`` is 8, or ``dim`` if that is smaller.
    """

    metric: ClassVar[Metric] = "cosine"
    own_scale: ClassVar[bool] = True

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        code_dim = min(positive_int("dim", dim), 8) if codebook_dim is None else codebook_dim
        super().__init__(dim, codebook_size, code_dim, **options)
        self._own(UnitCodes(codebook_size, self.codebook_dim))


class DecodedCodes(TrainedCodes):
    """Trained codes without a loss of their own: the decoder's gradient moves them."""

    has_loss = False


@register("diveq")
class DiVeQ(CodebookQuantizer):
    """The step to the nearest code, ``q = z + |c - z| · sg(v/|v|)``, ``v = c - z + noise``, and no loss of its own.

    The gradient reaches latent and code through the length of the step (Vali et al., 2025). The noise has a
    ``variance`` in mean squared quantization errors of the batch; by default ``commitment_weight`` is 0 and
    ``kmeans_init`` is on.
    """

    way: ClassVar[type[Directional]] = Directional

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, *, variance: float = 1e-3, **options: Any
    ) -> None:
        options = {"commitment_weight": 0.0, "kmeans_init": True, **options}
        super().__init__(dim, codebook_size, codebook_dim, estimator=self.way(variance), **options)
        self._own(DecodedCodes(codebook_size, self.codebook_dim))


@register("sf_diveq")
class SFDiVeQ(DiVeQ):
    """DiVeQ in training to the polyline ``c_1 c_2 … c_K`` instead of its corners; in evaluation to the nearest code.

    ``q = z + (1-λ) |c_i - z| · sg(v_i/|v_i|) + λ |c_{i+1} - z| · sg(v_{i+1}/|v_{i+1}|)``

    i is the nearest of the points ``(1-λ_k) c_k + λ_k c_{k+1}``, one on each segment, λ drawn uniformly at every step.
    """

    way = SpaceFilling
