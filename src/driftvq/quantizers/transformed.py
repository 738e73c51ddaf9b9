"""What SimVQ and TransVQ share: a frozen base codebook, moved as a whole by a trained transform."""

from collections.abc import Callable
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.growth import Rule, between


class _OptimizerSteps:
    """Counts the steps of all optimizers: fused ones change weights without a trace in the tensors' versions."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self)

    def __call__(self, *_: object) -> None:
        self.count += 1


OPTIMIZER_STEPS = _OptimizerSteps()


class TransformedCodebook(CodebookQuantizer):
    """The codebook in use is ``C' = P_φ(C)``: C is frozen, φ is trained by the embedding loss.

    One step on φ moves every code, the unselected too. In evaluation C' is computed once and kept until φ or C changes.

    Args:
        make_transform: given the dimension of a code, makes P_φ, which maps ``(k, d)`` to ``(k, d)``.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {**CodebookQuantizer.rows_per_code, "base_codebook": between}
    base_codebook: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None,
        make_transform: Callable[[int], nn.Module],
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        base_kd = torch.randn(codebook_size, self.codebook_dim) * self.codebook_dim**-0.5
        self.register_buffer("base_codebook", base_kd)
        self.transform = make_transform(self.codebook_dim)
        self._kept: tuple[object, Tensor] | None = None
        self._apply_freeze_()

    @property
    def codebook(self) -> Tensor:
        return self._current_codebook()

    def _current_codebook(self) -> Tensor:
        if self.training or torch.compiler.is_compiling():
            return self._transformed()
        state = self._state()
        if self._kept is None or self._kept[0] != state:
            with torch.no_grad():
                self._kept = (state, self._transformed())
        return self._kept[1]

    def _transformed(self) -> Tensor:
        with torch.autocast(self.base_codebook.device.type, enabled=False):
            codebook_kd: Tensor = self.transform(self.base_codebook)
        return codebook_kd

    def _state(self) -> object:
        """Changes whenever the transform or the base does."""
        tensors = (self.base_codebook, *self.transform.parameters())
        versions = tuple((t.data_ptr(), t.dtype, 0 if t.is_inference() else t._version) for t in tensors)
        return OPTIMIZER_STEPS.count, versions

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": None}

    @torch.no_grad()
    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        self.base_codebook.copy_(codebook_kd)

    def _apply_freeze_(self) -> None:
        self.transform.requires_grad_(not self._frozen)
