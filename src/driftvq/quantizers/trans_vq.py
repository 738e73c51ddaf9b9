"""TransVQ (the paper, Sec. 3.4): a small transformer moves the whole codebook."""

from typing import Any, Literal, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from driftvq.functional import masked_mse, nearest
from driftvq.quantizers.base import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions
from driftvq.quantizers.follow import Fitted, Follower, commitment_weight
from driftvq.quantizers.pace import Pace, scale_free
from driftvq.quantizers.registry import register
from driftvq.quantizers.transformed import TransformedCodebook
from driftvq.quantizers.transforms import AttentionTransform, MLPTransform

TransformName = Literal["attention", "mlp"]


@register("trans_vq", "paper", "published")
class TransVQ(TransformedCodebook):
    """A small network P_φ moves the whole codebook: ``C' = P_φ(C)``, and φ is trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    One step on φ moves every code, so none is left behind by a drifting encoder, and unlike SimVQ's linear map P_φ can
    reach any codebook, the k-means one included.

    By default C starts as the k-means of the first latents and lives. At each training step

    1. C takes over what the optimizer has changed in P_φ, but moves less than the latents did:
       :class:`driftvq.quantizers.pace.Pace`;
    2. φ gets the gradient of ``L / sg(L + s²)`` with ``L = mse(sg z, c' + sg Δ(c'))``, where Δ is the affine drift of
       the latents and s the spread of the codes: P_φ learns what the drift leaves over, whatever the scale;
    3. C follows the latents as NSVQ's does: drift, means of the winners, lost codes
       (:class:`driftvq.quantizers.follow.Follower`).

    So nothing depends on the scale of the latents, and no learning rate lets the codes outrun them. In evaluation the
    codebook is C itself, as the latest training step left it: look-up needs no network. With ``follow=False`` C is
    frozen, as in the paper.

    Args:
        transform: ``"attention"`` (linear attention, then an MLP) or ``"mlp"`` (each code by itself: nearly as good,
            much faster).
        width: model width of the attention form; the MLP's hidden width is ``width × mlp_ratio`` in both forms.
        mlp_ratio: see ``width``.
        residual: ``C' = C + P_φ(C)`` with P_φ zero at the start, instead of ``C' = P_φ(C)``.
        code_embedding: learn one more vector per code (attention only), as the published code does.
        follow: C lives, as above, instead of being frozen; None: it does if it starts from latents (``kmeans_init``)
            and is ``residual``.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on by default, and
            with a living C ``commitment_weight`` is :func:`driftvq.quantizers.follow.commitment_weight`.
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
        follow: bool | None = None,
        **options: Unpack[CodebookOptions],
    ) -> None:
        one_of("transform", transform, ("attention", "mlp"))
        positive_int("width", width)
        if code_embedding and transform == "mlp":
            raise ValueError("code_embedding=True needs transform='attention', got transform='mlp'")
        if follow and not residual:
            raise ValueError("follow=True needs residual=True, got residual=False")

        def make_transform(d: int) -> nn.Module:
            if transform == "mlp":
                return MLPTransform(d, int(width * mlp_ratio), residual)
            return AttentionTransform(d, width, mlp_ratio, residual, codebook_size if code_embedding else None)

        options.setdefault("kmeans_init", True)
        super().__init__(dim, codebook_size, codebook_dim, make_transform, **options)
        if follow is None:
            follow = residual and options["kmeans_init"]
        if follow and "commitment_weight" not in options:
            self.commitment_weight = commitment_weight(self.codebook_dim)
        self.follower = Follower(codebook_size, self.codebook_dim) if follow else None
        self.pace = Pace(codebook_size, self.codebook_dim) if follow else None
        self._started_now = False
        self._latest: tuple[Tensor, Fitted] | None = None
        """The latest drift and the winners it belongs to, until the codes have followed it."""
        self._settle_()

    @classmethod
    def paper(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The paper's literal form: ``C' = P_φ(C)`` without a residual, over a k-means codebook."""
        return cls(dim, codebook_size, codebook_dim, **{"residual": False, **options})

    @classmethod
    def published(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The form of the authors' published code: Gaussian base, a learned vector per code, no residual."""
        form = {"residual": False, "code_embedding": True, "kmeans_init": False}
        return cls(dim, codebook_size, codebook_dim, **{**form, **options})

    def readings(self) -> dict[str, float]:
        """The share of the drift that is followed, and how far φ moved the codes and the latents moved."""
        if self.pace is None or self.follower is None:
            return {}
        return self.follower.readings() | self.pace.readings()

    def _current_codebook(self) -> Tensor:
        if self.pace is None:
            return super()._current_codebook()
        if not self.training or self._frozen or self.follower is None:
            return self.base_codebook
        with torch.autocast(self.base_codebook.device.type, enabled=False):
            codebook_kd: Tensor = self.pace(self.base_codebook, self.transform, self.follower.latents_step)
        return codebook_kd

    def _match(self, z_nd: Tensor, codebook_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        moving = self.training and not self._frozen and self.start.done
        if not moving or self.pace is None or self.follower is None:
            return super()._match(z_nd, codebook_kd, valid_n)
        codes_kd = codebook_kd.detach()
        self.pace.record_(self.base_codebook, codes_kd, self.follower.latents_step)
        self.base_codebook.copy_(codes_kd)
        winners_n = nearest(z_nd, codes_kd)
        fitted = self.follower.fit(codes_kd, z_nd.detach(), winners_n, valid_n)
        self._latest = winners_n, fitted
        drift_kd = self.follower.drifted(codes_kd, fitted.drift) - codes_kd
        loss = masked_mse(z_nd.detach(), F.embedding(winners_n, codebook_kd + drift_kd), valid_n)
        return winners_n, scale_free(loss, codes_kd)

    @torch.no_grad()
    def _update_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        if self.follower is not None and not self._started_now:
            fitted = self._latest[1] if self._latest is not None and self._latest[0] is winners_n else None
            codes_kd = self.follower(self.base_codebook, z_nd, winners_n, valid_n, self.step, fitted)
            self.base_codebook.copy_(codes_kd)
            self._settle_()
        self._started_now, self._latest = False, None

    @torch.no_grad()
    def _start_(self, z_nd: Tensor, valid_n: Tensor | None) -> None:
        super()._start_(z_nd, valid_n)
        # The codes are the k-means of these very latents: there is nothing to follow yet.
        self._started_now = self.start.done

    def _settle_(self) -> None:
        if self.pace is not None:
            self.pace.settle_(self.base_codebook, self.transform)

    @torch.no_grad()
    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        super()._set_codebook_(codebook_kd)
        if self.follower is not None:
            self.follower.reset_()
        self._settle_()

    @torch.no_grad()
    def grow_(self, new_size: int, optimizer: Optimizer | None = None) -> None:
        if self.pace is not None:
            self.base_codebook.copy_(self.codebook)
            self._settle_()
        super().grow_(new_size, optimizer)

    def _busyness(self) -> Tensor:
        return super()._busyness() if self.follower is None else self.follower.mass

    def _grown_(self) -> None:
        self._settle_()
