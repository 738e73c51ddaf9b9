"""What the quantizers with an explicit codebook share: matching, estimator, commitment, k-means start, growth."""

from typing import Any, ClassVar, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from driftvq.functional import Metric, masked_mse, nearest_few, straight_through
from driftvq.names import check_name, in_range, positive_int
from driftvq.quantizers.codebooks.base import Codebook, Lesson, change_where_, row_weights
from driftvq.quantizers.codebooks.following import FollowingCodes
from driftvq.quantizers.codebooks.growth import Rule, copied, grow_rows_, halved, split_busiest
from driftvq.quantizers.codebooks.sampling import take_over
from driftvq.quantizers.codebooks.start import KMeansStart
from driftvq.quantizers.distributed import is_sharded, with_whole_parameters
from driftvq.quantizers.estimators import Estimator, make_estimator
from driftvq.quantizers.finite import OWN_SCALE
from driftvq.quantizers.quantizer import Quantizer, argument_names
from driftvq.quantizers.recomputation import recomputing
from driftvq.quantizers.steps import Call, Selection, Step, project


class CodebookOptions(TypedDict, total=False):
    """The options of :class:`CodebookQuantizer`, which every quantizer with a codebook takes."""

    commitment_weight: float
    estimator: str | Estimator
    kmeans_init: bool
    kmeans_iters: int
    freeze_codebook: bool
    channel_first: bool


class CodebookQuantizer(Quantizer):
    """A quantizer that has a codebook, in which the code nearest to each latent is found, and an estimator.

    ``loss = codebook's term + β · mse(z, sg c)``

    What holds the codes and what moves them is the codebook's affair (:mod:`driftvq.quantizers.codebooks`); a method
    gives it to :meth:`_own`.

    Args:
        commitment_weight: β, the weight of the term that draws the encoder to the codes.
        estimator: how the gradient passes: ``"straight_through"``, ``"rotation"``, ``"modified"``, ``"gumbel"``, or an
            :class:`Estimator`.
        kmeans_init: start from k-means of the first latents seen in training.
        kmeans_iters: iterations of that k-means.
        freeze_codebook: never move a code; may be set later.
    """

    metric: ClassVar[Metric] = "l2"
    restart_after: int = 0  # in training, a code not selected for so many steps moves to a random latent; 0: none does
    rows_per_code: ClassVar[dict[str, Rule]] = {"code_age": copied}  # buffers with a row per code, and how each grows
    book: Codebook

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
        **unknown: Any,
    ) -> None:
        for name in unknown:
            known = [own for own in argument_names(type(self)) if own not in unknown]
            check_name(f"argument of {type(self).__name__}", name, known)
        super().__init__(dim, codebook_size, codebook_dim, channel_first)
        self.commitment_weight = in_range("commitment_weight", commitment_weight, 0, float("inf"))
        self.estimator = make_estimator(estimator)
        iterations = positive_int("kmeans_iters", kmeans_iters)
        self.start = KMeansStart(codebook_size, self.codebook_dim, iterations, self.metric, done=not kmeans_init)
        self._frozen = freeze_codebook

    def _own(self, book: Codebook) -> None:
        self.book = book
        book.freeze_(self._frozen)

    @property
    @with_whole_parameters
    def codebook(self) -> Tensor:
        """The codes in use; frozen ones get no gradient, whatever else turns ``requires_grad`` on."""
        codes_kd: Tensor = self.book()
        return codes_kd.detach() if self._frozen else codes_kd

    def set_codebook_(self, codes_kd: Tensor) -> None:
        """Take over a whole codebook ``(codebook_size, codebook_dim)``; a k-means start that waits is off."""
        expected = (self.codebook_size, self.codebook_dim)
        if tuple(codes_kd.shape) != expected:
            raise ValueError(f"the codebook must have shape {expected}, got {tuple(codes_kd.shape)}")
        self.book.set_(codes_kd)
        self.start.finish_()

    @property
    def freeze_codebook(self) -> bool:
        """While True no code moves, by gradient or by statistics."""
        return self._frozen

    @freeze_codebook.setter
    def freeze_codebook(self, frozen: bool) -> None:
        self._frozen = frozen
        self.book.freeze_(frozen)

    @property
    def leaves_out(self) -> bool:
        return self.book.leaves_out

    def readings(self) -> dict[str, float]:
        return self.book.readings()

    @torch.no_grad()
    def grow_(self, new_size: int, optimizer: Optimizer | None = None) -> None:
        """Add codes by splitting the busiest cells; every index goes on meaning the same code.

        The distortion of a batch can only fall. With several processes, call it in all of them at the same step; where
        the codes are a parameter, wrap the model in ``DistributedDataParallel`` again afterwards. What an optimizer
        that trains the codebook knows about the codes grows with them.
        """
        self.check_growth(new_size)
        old_size, busyness_k = self.codebook_size, self.book.busyness()
        if busyness_k is None:
            busyness_k = 1 / (1 + self.code_age)
        while self.codebook_size < new_size:
            missing = new_size - self.codebook_size
            split = split_busiest(self.codebook, busyness_k, old_size, missing, seed=self.codebook_size)
            busyness_k = halved(busyness_k, split)
            for module in self.modules():
                for name, rule in getattr(module, "rows_per_code", {}).items():
                    grow_rows_(module, name, rule, split, optimizer)
            self.codebook_size += len(split.parents)
            self.book.grown_()

    def check_growth(self, new_size: int) -> None:
        """Refuse what :meth:`grow_` cannot do."""
        if positive_int("new_size", new_size) < self.codebook_size:
            raise ValueError(f"new_size must be at least the present {self.codebook_size} codes, got {new_size}")
        if self.start.waits():
            raise ValueError("a codebook can grow once its k-means start is finished: train a few steps first")
        self.book.check_growth()

    def _scale(self) -> tuple[float, float]:
        least, most = super()._scale()
        if self.training and not self.start.waits() and not isinstance(self.book, FollowingCodes) and self.step == 0:
            # Codes that nothing brought to the latents: an optimizer or an average would take for ever over more.
            size = float(torch.linalg.vector_norm(self.book.stored.detach())) / self.book.stored.numel() ** 0.5
            least, most = max(least, OWN_SCALE[0] * min(size, 1)), min(most, OWN_SCALE[1] * max(size, 1))
        return least, most

    def _run(self, x_nd: Tensor, call: Call) -> Step:
        if self.training and recomputing():
            with self._past.recalled(x_nd):
                return super()._run(x_nd, call)
        step = super()._run(x_nd, call)
        if self.training:
            self._past.remember(x_nd, self.book, self.book.stored)
        return step

    def _select(self, z_nd: Tensor, call: Call) -> Selection:
        if self.restart_after > 0 and call.first and call.learns and not self._frozen and self.book.has_loss:
            with torch.no_grad():
                overdue_k = (self.code_age > 0) & (self.code_age % self.restart_after == 0)
                weight_n = row_weights(z_nd, call.valid)
                self.book.set_(take_over(self.codebook, overdue_k, z_nd.detach(), weight_n, self.step)[0])
        # Sums of codes are then what they are when indices are decoded.
        z_nd = z_nd.to(torch.promote_types(z_nd.dtype, self.book.stored.dtype))
        starts = call.learns and not self._frozen and self.start.waits()
        if starts:
            self._start_(z_nd, call.valid)
        z_nd = self.to_code_space(z_nd)
        codebook_kd = self.codebook
        if call.trains:
            with torch.enable_grad():  # cast codes still say that they learn, where a checkpoint runs without gradients
                codebook_kd = codebook_kd.to(z_nd.dtype)
        else:
            codebook_kd = codebook_kd.to(z_nd.dtype).detach()
        match = self.book.match(z_nd, codebook_kd, call.valid, call.choices)
        terms = {"commitment": masked_mse(z_nd, match.codes.detach(), call.valid)}
        loss = self.commitment_weight * terms["commitment"]
        if match.loss is not None:
            terms["codebook"] = match.loss if call.trains and not self._frozen else match.loss.detach()
            loss = loss + terms["codebook"]
        if self.training:
            indices_n, quantized_nd = self.estimator(z_nd, codebook_kd, match._replace(valid=call.valid))
        else:
            indices_n, quantized_nd = match.winners, straight_through(z_nd, match.codes)
        lesson = self._lesson(z_nd, match.winners, call.valid)._replace(seen=match.seen, teaches=not starts)
        return Selection(quantized_nd, indices_n, loss, lesson, terms)

    def _count_(self, lesson: Lesson) -> Tensor:
        if lesson.teaches and not self._frozen:
            return self.book.learn_(lesson)
        return super()._count_(lesson)

    def _nearest_few(self, x_nd: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The nearest codes ``(n, count)``, or all if there are fewer, and what each gives ``(n, count, dim)``."""
        z_nd = self.to_code_space(project(self.project_in, x_nd))
        codebook_kd = self.codebook.to(z_nd.dtype)
        indices_nc = nearest_few(z_nd, codebook_kd, min(count, len(codebook_kd)))
        return indices_nc, project(self.project_out, F.embedding(indices_nc, codebook_kd))

    def to_code_space(self, z_nd: Tensor) -> Tensor:
        """Latents as they are compared with codes: those compared by cosine have unit length."""
        return F.normalize(z_nd, dim=1) if self.metric == "cosine" else z_nd

    def _check_sharding(self) -> None:
        moves = self.restart_after > 0 or self.start.waits() or isinstance(self.book, FollowingCodes)
        if isinstance(self.book.stored, nn.Parameter) and moves and is_sharded(self.book.stored):
            raise ValueError(
                f"FSDP has sharded the codes of {type(self).__name__}, and would lose what its k-means start or its "
                "statistics write into them: finish the start before sharding, or take a quantizer whose codes are "
                "buffers, such as NSVQ with the estimator 'straight_through'"
            )

    @torch.no_grad()
    def _start_(self, z_nd: Tensor, valid_n: Tensor | None) -> None:
        codes_kd, made = self.start(z_nd, valid_n)
        learned = [self.book.stored] if isinstance(self.book.stored, nn.Parameter) else []
        change_where_(made, [*self.book.buffers(), *learned], lambda: self.book.set_(codes_kd))
