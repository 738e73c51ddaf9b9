"""A frozen codebook that a trained network moves as a whole."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from driftvq.quantizers.codebooks.base import Codebook
from driftvq.quantizers.codebooks.growth import Rule, between
from driftvq.quantizers.codebooks.networks import CodeBridge, CodeTokens
from driftvq.quantizers.finite import is_seen_at_once, is_traced


class TransformedCodes(Codebook):
    """The codes in use are ``C' = P_φ(C)``: C is frozen unless ``trains_base``, φ is trained by ``mse(sg z, c')``.

    One step on φ moves every code, the unselected too. In evaluation on the CPU C' is computed once and kept while φ
    and C have the values that it came from; elsewhere asking would stall the device, and every call computes it.

    Attributes:
        base: C, Gaussian noise of variance 1/d unless it is set.
        settled: above 0 where the codes in use are C itself, and φ is idle.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"base": between}
    by_gradient: ClassVar[bool] = True
    base: Tensor
    settled: Tensor

    def __init__(self, codebook_size: int, dim: int, transform: nn.Module, trains_base: bool = False) -> None:
        super().__init__()
        base_kd = torch.randn(codebook_size, dim) * dim**-0.5
        if trains_base:
            self.base = nn.Parameter(base_kd)
        else:
            self.register_buffer("base", base_kd)
        self.register_buffer("settled", torch.zeros(()))
        self.transform = transform
        self._kept: tuple[tuple[Tensor, ...], Tensor] | None = None

    @property
    def stored(self) -> Tensor:
        return self.base

    def forward(self) -> Tensor:
        if self.training:
            self._kept = None
        if self.training or torch.compiler.is_compiling() or any(map(is_traced, self._tensors())):
            return self.transformed()
        with torch.inference_mode(False), torch.no_grad():
            if not all(is_seen_at_once(t) and type(t) in (Tensor, nn.Parameter) for t in self._tensors()):
                return self.transformed()
            # By value: what ``.data`` or a fused optimizer writes leaves no trace in a tensor's version.
            if self._kept is None or not _same(self._kept[0], self._tensors()):
                self._kept = (tuple(tensor.clone() for tensor in self._tensors()), self.transformed())
            return self._kept[1]

    def transformed(self) -> Tensor:
        """``P_φ(C)``, computed now, or C once it is settled."""
        # The start may write into C before the gradient of an earlier call is computed.
        base_kd = self.base.clone() if self.training else self.base
        with torch.autocast(base_kd.device.type, enabled=False):
            codes_kd: Tensor = self.transform(base_kd)
        return torch.where(self.settled > 0, base_kd, codes_kd)

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.base, self.settled, *self.transform.parameters()

    def train(self, mode: bool = True) -> "TransformedCodes":
        """Evaluation after training sees the trained codes: what was kept is dropped."""
        self._kept = None
        return super().train(mode)

    def check_growth(self) -> None:
        if any(isinstance(module, CodeTokens | CodeBridge) for module in self.transform.modules()):
            raise ValueError("codes that a network mixes with each other cannot grow: new ones would change the others")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    @torch.no_grad()
    def set_(self, codes_kd: Tensor) -> None:
        self.base.copy_(codes_kd)
        self.settled.fill_(0)

    @torch.no_grad()
    def settle_(self, codes_kd: Tensor) -> None:
        self.base.copy_(codes_kd)
        self.settled.fill_(1)


def _same(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
