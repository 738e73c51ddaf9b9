"""Codebooks that a trained network alone moves: TransVQ as published, SimVQ, and FVQ's VQBridge."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from driftvq.functional.blocks import Linear
from driftvq.names import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks import networks
from driftvq.quantizers.codebooks.base import Codebook
from driftvq.quantizers.codebooks.growth import Rule, between
from driftvq.quantizers.finite import is_seen_at_once, is_traced
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.trans_vq import TransformName

WIDTH, MLP_RATIO = 256, 2  # the published network's sizes
NAMES = {"frozen_codebook": "base", "code_transform.": "transform."}  # beginnings of the authors' names, and of ours
TOKENS = 256  # at most, unless the size of a group is given: attention then costs little beside the search, for any K


class TransformedCodes(Codebook):
    """The codes in use are ``C' = P_φ(C)``: C is frozen unless ``trains_base``, φ is trained by ``mse(sg z, c')``.

    One step on φ moves every code, the unselected too. In evaluation on the CPU C' is computed once and kept while φ
    and C have the values that it came from; elsewhere asking would stall the device, and every call computes it.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"base": between}
    has_loss: ClassVar[bool] = True

    def __init__(self, codebook_size: int, dim: int, transform: nn.Module, trains_base: bool = False) -> None:
        super().__init__()
        base_kd = torch.randn(codebook_size, dim) * dim**-0.5  # C, unless it is set
        if trains_base:
            self.base = nn.Parameter(base_kd)
        else:
            self.register_buffer("base", base_kd)
        self.register_buffer("settled", torch.zeros(()))  # above 0 where the codes in use are C itself, and φ is idle
        self.transform = transform.eval()
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
        """Evaluation after training sees the trained codes: what was kept is dropped.

        P_φ stays in evaluation, so that C' is the same to the bit in training, in evaluation and exported.
        """
        self._kept = None
        super().train(mode)
        self.transform.eval()
        return self

    def check_growth(self) -> None:
        if any(isinstance(module, networks.CodeTokens | networks.CodeBridge) for module in self.transform.modules()):
            raise ValueError("codes that a network mixes with each other cannot grow: new ones would change the others")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def set_(self, codes_kd: Tensor) -> None:
        super().set_(codes_kd)
        self.settled.fill_(0)

    def settle_(self, codes_kd: Tensor) -> None:
        self.set_(codes_kd)
        self.settled.fill_(1)


def _same(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@register("trans_vq_paper")
class TransVQPaper(CodebookQuantizer):
    """As printed (the paper, Sec. 3.4): ``C' = P_φ(C)``; C, the k-means of the first latents, is frozen, φ trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    Args:
        transform: ``"attention"`` (each code a token: linear attention, then an MLP) or ``"mlp"`` (Sec. 6: two layers
            on each code by itself).
        width: of the attention form; the MLP's hidden width is ``width × mlp_ratio`` in both forms.
        residual: ``C' = C + P_φ(C)`` with P_φ zero at the start, instead of ``C' = P_φ(C)``.
        options: ``kmeans_init`` is on.
    """

    own_scale: ClassVar[bool] = True

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
        dim, hidden = self.codebook_dim, int(width * mlp_ratio)
        if transform == "mlp":
            network: nn.Module = nn.Sequential(Linear(dim, hidden), nn.GELU(), Linear(hidden, dim))
        else:
            network = networks.CodeTransformer(dim, width, mlp_ratio)
        self._own(TransformedCodes(codebook_size, dim, networks.Residual(network) if residual else network))


@register("trans_vq_published")
class TransVQPublished(CodebookQuantizer):
    """The authors' published code: ``C' = P_φ(C + a learned vector per code)``, over frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    P_φ: in-projection, the learned vectors, one pre-norm block of single-head linear attention and an MLP, a last norm,
    out-projection (:class:`driftvq.quantizers.codebooks.networks.PublishedTransformer`). Given the authors' weights
    (:meth:`load_published_`), codebook, indices, loss and gradients are theirs.
    """

    own_scale: ClassVar[bool] = True

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        network = networks.PublishedTransformer(codebook_size, self.codebook_dim, WIDTH, MLP_RATIO)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, network))

    @torch.no_grad()
    def load_published_(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take over the authors' weights, by their names, ``frozen_codebook`` and ``code_transform.…``.

        Names before them, as in a whole model's state dict, are allowed, and so are other entries.
        """
        found = {"settled": torch.zeros(())}
        for name, tensor in state_dict.items():
            if theirs := re.fullmatch(r"(?:.*\.)?(frozen_codebook|code_transform\.)(.*)", name):
                found[NAMES[theirs[1]] + theirs[2]] = tensor
        expected = self.book.state_dict()
        if missing := sorted(expected.keys() - found.keys()):
            first = next(a + missing[0].removeprefix(b) for a, b in NAMES.items() if missing[0].startswith(b))
            raise ValueError(f"the state dict lacks {len(missing)} tensors of TransVQ, the first {first!r}")
        if wrong := [name for name, tensor in expected.items() if tensor.shape != found[name].shape]:
            shapes = f"{tuple(found[wrong[0]].shape)}, expected {tuple(expected[wrong[0]].shape)}"
            raise ValueError(f"{wrong[0]} has shape {shapes}: use the dim and codebook_size it was trained with")
        self.book.load_state_dict({name: found[name] for name in expected})


@register("sim_vq")
class SimVQ(CodebookQuantizer):
    """The codebook in use is ``C' = C Wᵀ`` (Zhu et al., 2024); W is trained, C is frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    A linear map cannot reach every codebook (in one dimension C' = wC), so k-means is not a limit of its training.
    """

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        linear = Linear(self.codebook_dim, self.codebook_dim, bias=False)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, linear))


@register("bridge_vq")
class BridgeVQ(CodebookQuantizer):
    """FVQ (Chang et al., 2025): ``C' = recover(C, process(compress(C)))`` is in use, C and the projector are trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    Groups of ``codes_per_token`` codes, by default as many as make at most :data:`TOKENS` tokens, become tokens of so
    much ``width``, which attend to each other by ``heads`` in so many blocks (``depth``): one step moves every code.
    """

    own_scale: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        codes_per_token: int | None = None,
        width: int = 256,
        heads: int = 4,
        depth: int = 2,
        **options: Unpack[CodebookOptions],
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        group = -(-codebook_size // TOKENS) if codes_per_token is None else codes_per_token
        for name, value in (("codes_per_token", group), ("width", width), ("heads", heads), ("depth", depth)):
            positive_int(name, value)
        if width % heads:
            raise ValueError(f"heads must divide width {width}, got {heads}")
        bridge = networks.CodeBridge(self.codebook_dim, group, width, heads, depth)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, bridge, trains_base=True))
