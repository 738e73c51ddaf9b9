"""CVQ-VAE (Zheng and Vedaldi, 2023): codes in little use move to anchors among the latents, the rarer the further."""

from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from driftvq.functional import gumbel_softmax, highest_logit
from driftvq.names import in_range, one_of
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.base import Lesson, TrainedCodes
from driftvq.quantizers.codebooks.growth import Rule, halved
from driftvq.quantizers.codebooks.sampling import draw_rows
from driftvq.quantizers.quantizer import register

Anchors = Literal["probabilistic", "closest", "random"]
ANCHORS: tuple[Anchors, ...] = ("probabilistic", "closest", "random")

MOST_CANDIDATES = 512
"""Latents of a batch, of all processes, among which anchors are looked for: a search of all of them would double the
cost of a step, and few codes move at all once training is under way."""

NARROWNESS, OFFSET = 10.0, 1e-3  # in ``α = exp(-10 K n / (1-γ) - 0.001)``, as the paper has them


class AnchoredCodes(TrainedCodes):
    """Trained codes that also move to anchors, by as much as they are out of use; ``share`` is n."""

    rows_per_code: ClassVar[dict[str, Rule]] = {**TrainedCodes.rows_per_code, "share": halved}
    training_state = ("share",)

    def __init__(self, codebook_size: int, dim: int, decay: float, anchors: Anchors) -> None:
        super().__init__(codebook_size, dim)
        self.decay = in_range("decay", decay, 0, 1 - 1e-9)
        self.anchors = one_of("anchors", anchors, ANCHORS)
        self.register_buffer("share", torch.zeros(codebook_size))

    @torch.no_grad()
    def learn_(self, lesson: Lesson) -> Tensor:
        selected_k = super().learn_(lesson)
        counts_k = selected_k.to(self.share.dtype)
        total = counts_k.sum()
        self.share.lerp_(torch.where(total > 0, counts_k / total.clamp(min=1), self.share), 1 - self.decay)
        pull_k = torch.exp(-NARROWNESS * len(self.codes) * self.share / (1 - self.decay) - OFFSET)
        pull_k = torch.where(total > 0, pull_k, 0).to(self.codes.dtype)
        self.codes.lerp_(self._anchors(lesson).to(self.codes.dtype), pull_k[:, None])
        return selected_k

    def _anchors(self, lesson: Lesson) -> Tensor:
        """The latent to which each code would move ``(k, d)``; the same in all processes."""
        wanted = torch.full_like(lesson.step, MOST_CANDIDATES)
        rows_md, drawn = draw_rows(lesson.latents, lesson.weight, wanted, MOST_CANDIDATES, lesson.step).in_front()
        codes_kd = self.codes.to(rows_md.dtype)
        if self.anchors == "random":
            return rows_md[torch.arange(len(codes_kd), device=rows_md.device) % drawn.clamp(min=1)]
        origin_d = codes_kd.mean(dim=0)
        codes_kd, near_md = codes_kd - origin_d, rows_md - origin_d
        missing_m = torch.arange(MOST_CANDIDATES, device=rows_md.device) >= drawn.clamp(min=1)
        bias_m = torch.where(missing_m, -torch.inf, -near_md.square().sum(dim=1))
        if self.anchors == "closest":
            return rows_md[highest_logit(codes_kd, 2 * near_md, bias_m)]
        return gumbel_softmax(codes_kd, 2 * near_md, bias_m, rows_md, 1.0, lesson.step)[1]

    def busyness(self) -> Tensor:
        return self.share

    def set_(self, codes_kd: Tensor) -> None:
        super().set_(codes_kd)
        self.share.fill_(1 / len(codes_kd))


@register("cvq")
class CVQ(CodebookQuantizer):
    """Codes in use are trained by gradient, those out of use move to anchors chosen among the latents.

    ``n_k ← γ n_k + (1-γ) |{i: win(i)=k}|/N``,  ``c_k ← (1-α_k) c_k + α_k z_a(k)``,  ``α_k = exp(-10 K n_k/(1-γ) - ε)``

    and ``loss = mse(sg z, c) + β · mse(z, sg c)``; γ is ``decay``. ``anchors`` says how a code finds its anchor a(k):
    ``"probabilistic"``, drawn with ``p(i) ∝ exp(-|z_i - c_k|²)``, ``"closest"`` to the code, or ``"random"``.
    """

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        anchors: Anchors = "probabilistic",
        decay: float = 0.99,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        self._own(AnchoredCodes(codebook_size, self.codebook_dim, decay, anchors))
