"""What the quantizers with an explicit codebook share: matching, estimator, losses, k-means start, restart.

Shape suffixes: n latents, k codes, d dimensions.
"""

from typing import ClassVar, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from driftvq.functional import Metric, masked_mse, nearest, orthogonal_loss, straight_through
from driftvq.quantizers.base import Quantizer, Selection, in_range, positive_int
from driftvq.quantizers.estimators import Estimator, make_estimator
from driftvq.quantizers.growth import Rule, between, copied, grow_rows_, halved, split_busiest
from driftvq.quantizers.start import KMeansStart
from driftvq.quantizers.sync import row_counts, sample_rows


class CodebookOptions(TypedDict, total=False):
    """The options of :class:`CodebookQuantizer`, which every quantizer with a codebook takes."""

    commitment_weight: float
    estimator: str | Estimator
    kmeans_init: bool
    kmeans_iters: int
    freeze_codebook: bool
    channel_first: bool


class TrainedCodebookOptions(CodebookOptions, total=False):
    """The options of :class:`TrainedCodebook`."""

    orthogonal_weight: float
    restart_after: int


class CodebookQuantizer(Quantizer):
    """Base of the quantizers that search a codebook of K codes for the one nearest to each latent.

    ``loss = codebook term + β · mse(z, sg c) [+ orthogonal term]``; which codebook term, is the method's choice.

    Args:
        dim, codebook_size, codebook_dim, channel_first: see :class:`Quantizer`.
        commitment_weight: β, the weight of the term that draws the encoder to the codes.
        estimator: how the gradient passes: ``"straight_through"``, ``"rotation"``, ``"modified"``, ``"gumbel"``, or an
            :class:`Estimator`.
        kmeans_init: start from k-means of the first latents seen in training.
        kmeans_iters: iterations of that k-means.
        freeze_codebook: never move a code; may be set later.
    """

    metric: Metric = "l2"
    rows_per_code: ClassVar[dict[str, Rule]] = {"code_age": copied}
    """Parameters and buffers with a row per code, and how each grows with the codebook."""

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        commitment_weight: float = 0.25,
        estimator: str | Estimator = "straight_through",
        kmeans_init: bool = False,
        kmeans_iters: int = 10,
        freeze_codebook: bool = False,
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, channel_first)
        self.commitment_weight = in_range("commitment_weight", commitment_weight, 0, float("inf"))
        self.estimator = make_estimator(estimator)
        self.start = KMeansStart(
            codebook_size,
            self.codebook_dim,
            positive_int("kmeans_iters", kmeans_iters),
            metric=self.metric,
            done=not kmeans_init,
        )
        self._frozen = freeze_codebook

    @property
    def freeze_codebook(self) -> bool:
        """While True no code moves, by gradient or by statistics."""
        return self._frozen

    @freeze_codebook.setter
    def freeze_codebook(self, frozen: bool) -> None:
        self._frozen = frozen
        self._apply_freeze_()

    @torch.no_grad()
    def grow_(self, new_size: int, optimizer: Optimizer | None = None) -> None:
        """Add codes by splitting the busiest cells; every index goes on meaning the same code.

        The distortion of a batch can only fall. With several processes, call it in all of them at the same step; where
        the codes are a parameter, wrap the model in ``DistributedDataParallel`` again afterwards.

        Args:
            new_size: codes afterwards.
            optimizer: the one that trains the codebook, if one does: what it knows about the codes grows with them.
        """
        self.check_growth(new_size)
        old_size, busyness_k = self.codebook_size, self._busyness()
        while self.codebook_size < new_size:
            missing = new_size - self.codebook_size
            split = split_busiest(self.codebook, busyness_k, old_size, missing, seed=self.codebook_size)
            busyness_k = halved(busyness_k, split)
            for module in self.modules():
                for name, rule in getattr(module, "rows_per_code", {}).items():
                    grow_rows_(module, name, rule, split, optimizer)
            self.codebook_size += len(split.parents)
            self._grown_()

    def check_growth(self, new_size: int) -> None:
        """Refuse what :meth:`grow_` cannot do."""
        if positive_int("new_size", new_size) < self.codebook_size:
            raise ValueError(f"new_size must be at least the present {self.codebook_size} codes, got {new_size}")
        if not self.start.done:
            raise ValueError("a codebook can grow once its k-means start is finished: train a few steps first")

    def _busyness(self) -> Tensor:
        """How much each code is in use ``(k,)``, of any scale: here by how recently it was selected."""
        return 1 / (1 + self.code_age)

    def _grown_(self) -> None:
        """Bring in line what depends on the number of codes."""

    def _select(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        if self.training and not self._frozen and not self.start.done:
            self._start_(z_nd, valid_n)
        z_nd = self._to_code_space(z_nd)
        codebook_kd = self.codebook.to(z_nd.dtype)
        if not self.training:
            codebook_kd = codebook_kd.detach()
        winners_n, codebook_loss = self._match(z_nd, codebook_kd, valid_n)
        codes_nd = F.embedding(winners_n, codebook_kd)
        loss = codebook_loss + self.commitment_weight * masked_mse(z_nd, codes_nd.detach(), valid_n)
        if self.training:
            indices_n, quantized_nd = self.estimator(z_nd, codebook_kd, winners_n)
        else:
            indices_n, quantized_nd = winners_n, straight_through(z_nd, codes_nd)
        return Selection(quantized_nd, indices_n, loss, winners_n)

    @torch.no_grad()
    def _learn_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        if self.start.done and not self._frozen:
            self._update_(self._to_code_space(z_nd), winners_n, valid_n)
        super()._learn_(z_nd, winners_n, valid_n)

    def _lookup(self, indices_n: Tensor) -> Tensor:
        return F.embedding(indices_n.clamp(min=0), self.codebook)

    def _to_code_space(self, z_nd: Tensor) -> Tensor:
        """Latents as they are compared with codes."""
        return z_nd

    def _match(self, z_nd: Tensor, codebook_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """The selected codes and the term of the loss that trains the codebook: ``mse(sg z, c)``."""
        winners_n = nearest(z_nd, codebook_kd)
        return winners_n, masked_mse(z_nd.detach(), F.embedding(winners_n, codebook_kd), valid_n)

    def _update_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        """Move codes by statistics, once per training step."""

    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        """Take over a whole codebook."""
        raise NotImplementedError

    def _apply_freeze_(self) -> None:
        """Make what trains the codebook trainable, or not."""

    @torch.no_grad()
    def _start_(self, z_nd: Tensor, valid_n: Tensor | None) -> None:
        codebook_kd = self.start(z_nd, valid_n)
        if codebook_kd is not None:
            self._set_codebook_(codebook_kd)


class TrainedCodebook(CodebookQuantizer):
    """A codebook that is a parameter of its own, trained by the loss.

    Args:
        orthogonal_weight: weight of the term that spreads the directions of the codes.
        restart_after: whenever a code was not selected for so many steps, move it to a random latent; 0: never.
        options: see :class:`CodebookQuantizer`.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {**CodebookQuantizer.rows_per_code, "codes": between}

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
        self.codes = nn.Parameter(initial_codebook(codebook_size, self.codebook_dim))
        self._apply_freeze_()

    @property
    def codebook(self) -> Tensor:
        return self.codes

    def _select(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        if self.restart_after > 0 and self.training and not self._frozen:
            overdue_k = (self.code_age > 0) & (self.code_age % self.restart_after == 0)
            restart_codes_(self.codes, overdue_k, self._to_code_space(z_nd), valid_n, self.step)
        selection = super()._select(z_nd, valid_n)
        if self.orthogonal_weight > 0:
            term = self.orthogonal_weight * orthogonal_loss(self.codebook)
            selection = selection._replace(loss=selection.loss + term)
        return selection

    @torch.no_grad()
    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        self.codes.copy_(codebook_kd)

    def _apply_freeze_(self) -> None:
        self.codes.requires_grad_(not self._frozen)


@torch.no_grad()
def restart_codes_(codebook_kd: Tensor, dead_k: Tensor, z_nd: Tensor, valid_n: Tensor | None, seed: Tensor) -> Tensor:
    """Move dead codes to distinct random latents of the batch, as many as it has; returns which codes moved."""
    weight_n = torch.ones(len(z_nd), device=z_nd.device) if valid_n is None else valid_n.float()
    rows_kd, available = sample_rows(z_nd, weight_n, len(codebook_kd), seed, row_counts(z_nd))
    order_k = dead_k.cumsum(dim=0)
    moved_k = dead_k & (order_k <= available)
    fresh_kd = rows_kd[(order_k - 1).clamp(min=0)].to(codebook_kd.dtype)
    codebook_kd.copy_(torch.where(moved_k[:, None], fresh_kd, codebook_kd))
    return moved_k


def initial_codebook(codebook_size: int, dim: int) -> Tensor:
    """Codes uniform in ±1/K, the usual start of a codebook that is not started from latents."""
    return torch.empty(codebook_size, dim).uniform_(-1 / codebook_size, 1 / codebook_size)
