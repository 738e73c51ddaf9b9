"""A codebook brought to k-means of latents that do not move any more, a batch at a time; m start codes again."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.base import Codebook, Lesson
from driftvq.quantizers.codebooks.sampling import draw_rows
from driftvq.quantizers.distributed import sum_over_processes
from driftvq.quantizers.estimators import StraightThrough
from driftvq.quantizers.quantizer import Quantizer
from driftvq.quantizers.residual_vq import ResidualVQ


class SettlingCodes(Codebook):
    """Stands in for a codebook while latents stream by, and takes a step of Lloyd's algorithm after each pass.

    ``c_k ← mean of the latents of all processes that selected it``; a code that none selected goes to a latent drawn
    with ``p(z) ∝ |z - c_win|²``, the rule of k-means++, of which ``drawn_per_batch`` are kept of each batch.
    """

    def __init__(self, codes_kd: Tensor, unit: bool, drawn_per_batch: int) -> None:
        super().__init__()
        self.unit, self.drawn_per_batch = unit, drawn_per_batch
        self.register_buffer("codes", codes_kd.detach().clone())
        self._forget()

    def _forget(self) -> None:
        self.counts, self.sums = self.codes.new_zeros(len(self.codes)), torch.zeros_like(self.codes)
        self.error = self.codes.new_zeros(())
        self.drawn: list[Tensor] = []

    def learn_(self, lesson: Lesson) -> Tensor:
        away_nd = lesson.latents - F.embedding(lesson.winners, self.codes)
        error_n = away_nd.square().sum(dim=1) * lesson.weight
        counts_k, sums_kd, _ = lesson.sums(len(self.codes))
        self.counts, self.sums = self.counts + counts_k, self.sums + sums_kd
        self.error = self.error + sum_over_processes(error_n.sum())[0]
        wanted = torch.tensor(self.drawn_per_batch, device=error_n.device)
        drawn = draw_rows(lesson.latents, error_n, wanted, self.drawn_per_batch, lesson.step)
        self.drawn.append(drawn.rows[drawn.there])
        return counts_k

    def next_(self) -> float:
        """Take the step; returns the mean squared distance of a latent to its code before it."""
        error = float(self.error / self.counts.sum().clamp(min=1))
        empty = (self.counts == 0).nonzero().flatten()
        codes_kd = torch.where(self.counts[:, None] > 0, self.sums / self.counts.clamp(min=1)[:, None], self.codes)
        fresh_md = torch.cat(self.drawn) if self.drawn else self.codes[:0]
        # Each batch gave as many: taken evenly from all of them, and not the first batch's alone.
        places = torch.linspace(0, max(len(fresh_md) - 1, 0), min(len(empty), len(fresh_md))).round().long()
        codes_kd[empty[: len(places)]] = fresh_md[places.to(fresh_md.device)]
        self.codes.copy_(F.normalize(codes_kd, dim=1) if self.unit else codes_kd)
        self._forget()
        return error


@torch.no_grad()
def settle_(quantizer: Quantizer, batches: Iterable[Tensor], passes: int = 10) -> list[float]:
    """Bring the codebooks of a quantizer to k-means of latents, from the present codes on, and freeze it.

    The codes are those of all processes together, each of which has to call this with batches of its own, as many as
    the others. A codebook that is computed by a network is held at the codes found; its network is idle from then on.
    Quantizers without a codebook of nearest codes (FSQ, LFQ, BSQ, GumbelVQ, IBQ) keep the one that they have, and so
    does a codebook that was frozen before. All that is left to train of the quantizer is its output projection.

    The batches are latents as the quantizer takes them, gone through once for each of the ``passes``, the steps of
    Lloyd's algorithm. Returns the mean squared distance of a latent to its code before each; empty without codebooks.
    """
    check_repeatable(batches)
    parts = [part for part in quantizer.modules() if isinstance(part, CodebookQuantizer) and not part.freeze_codebook]
    errors = _lloyd_(quantizer, parts, batches, passes) if parts else []
    freeze_but_output_(quantizer)
    return errors


def freeze_but_output_(quantizer: Quantizer) -> None:
    """Let nothing of a quantizer learn but its output projection, which is the decoder's first layer."""
    for part in quantizer.modules():
        if hasattr(part, "freeze_codebook"):
            setattr(part, "freeze_codebook", True)  # noqa: B010 - not every quantizer has one
    for parameter in quantizer.parameters():
        parameter.requires_grad_(False)
    quantizer.project_out.requires_grad_(True)


def check_repeatable(batches: Iterable[Tensor]) -> None:
    """Refuse what can be gone through only once."""
    if iter(batches) is batches:
        raise ValueError(f"batches must be something to go through several times, got {type(batches).__name__}")


def _lloyd_(
    quantizer: Quantizer, parts: list[CodebookQuantizer], batches: Iterable[Tensor], passes: int
) -> list[float]:
    """What :func:`settle_` does to the codebooks; the ages of codes and the steps counted stay what they were."""
    before, training, errors = [(part.book, part.estimator) for part in parts], quantizer.training, []
    every = [part for part in quantizer.modules() if isinstance(part, Quantizer)]
    counted = [(part, part.code_age.clone(), part.step.clone()) for part in every]
    quantizer.train()
    for part in parts:
        part.start.finish_()
        codes_kd = part.codebook.to(torch.promote_types(part.codebook.dtype, torch.float32))
        part.book = SettlingCodes(codes_kd, part.metric == "cosine", -(-len(codes_kd) // 8))
        part.estimator = StraightThrough()  # what is left for a next level is then what evaluation leaves
    dropping = [(levels, levels.quantizer_dropout) for levels in every if isinstance(levels, ResidualVQ)]
    for levels, _ in dropping:
        levels.quantizer_dropout = 0.0
    try:
        for _ in range(passes):
            for latents in batches:
                quantizer(latents)
            errors.append(sum(part.book.next_() for part in parts if isinstance(part.book, SettlingCodes)))
    finally:
        found = [part.codebook.clone() for part in parts]
        for part, (book, estimator) in zip(parts, before, strict=True):
            part.book, part.estimator = book, estimator
        for levels, dropout in dropping:
            levels.quantizer_dropout = dropout
        for each, age, step in counted:
            each.code_age.copy_(age)
            each.step.copy_(step)
        quantizer.train(training)
    for part, codes_kd in zip(parts, found, strict=True):
        part.book.settle_(codes_kd)
    return errors
