"""Codebooks that a trained network alone moves, all codes together.

TransVQ as it was published, as printed and as in the authors' code; SimVQ (Zhu et al., 2024), whose network is a
matrix; FVQ (Chang et al., 2025), whose network compresses, processes and recovers the codes (VQBridge).
"""

from collections.abc import Mapping
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from driftvq.names import one_of, positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.networks import CodeBridge, CodeMLP, CodeTransformer, PublishedTransformer, Residual
from driftvq.quantizers.codebooks.transformed import TransformedCodes
from driftvq.quantizers.quantizer import register
from driftvq.quantizers.trans_vq import TransformName

WIDTH, MLP_RATIO = 256, 2
"""The published network's sizes."""

NAMES = {"frozen_codebook": "base", "code_transform.": "transform."}
"""Beginnings of the authors' names, and of ours in the codebook."""


@register("trans_vq_paper")
class TransVQPaper(CodebookQuantizer):
    """As printed (the paper, Sec. 3.4): ``C' = P_φ(C)``; C, the k-means of the first latents, is frozen, φ trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    Args:
        transform: ``"attention"`` (each code a token: linear attention, then an MLP) or ``"mlp"`` (Sec. 6: two layers
            on each code by itself).
        width: model width of the attention form; the MLP's hidden width is ``width × mlp_ratio`` in both forms.
        mlp_ratio: see ``width``.
        residual: ``C' = C + P_φ(C)`` with P_φ zero at the start, instead of ``C' = P_φ(C)``.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`; here ``kmeans_init`` is on.
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
        network = (
            CodeMLP(self.codebook_dim, int(width * mlp_ratio))
            if transform == "mlp"
            else CodeTransformer(self.codebook_dim, width, mlp_ratio)
        )
        moved_by = Residual(network) if residual else network
        self._own(TransformedCodes(codebook_size, self.codebook_dim, moved_by))


@register("trans_vq_published")
class TransVQPublished(CodebookQuantizer):
    """The authors' published code: ``C' = P_φ(C + a learned vector per code)``, over frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    P_φ: in-projection, the learned vectors, one pre-norm block of single-head linear attention and an MLP, a last norm,
    out-projection (:class:`driftvq.quantizers.codebooks.networks.PublishedTransformer`). Given the authors' weights
    (:meth:`load_published_`), codebook, indices, loss and gradients are theirs.

    Args:
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    own_scale: ClassVar[bool] = True

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        network = PublishedTransformer(codebook_size, self.codebook_dim, WIDTH, MLP_RATIO)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, network))

    @torch.no_grad()
    def load_published_(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take over the authors' weights.

        Args:
            state_dict: with their names, ``frozen_codebook`` and ``code_transform.…``; names before them, as in a whole
                model's state dict, are allowed, and so are other entries.
        """
        found = {"settled": torch.zeros(())}
        for name, tensor in state_dict.items():
            for theirs, ours in NAMES.items():
                before, match, rest = name.rpartition(theirs)
                if match and (not before or before.endswith(".")):
                    found[ours + rest] = tensor
        expected = self.book.state_dict()
        absent = expected.keys() - found.keys()
        missing = [
            theirs + name[len(ours) :]
            for theirs, ours in NAMES.items()
            for name in sorted(absent)
            if name.startswith(ours)
        ]
        if missing:
            raise ValueError(f"the state dict lacks {len(missing)} tensors of TransVQ, the first {missing[0]!r}")
        wrong = [name for name, tensor in expected.items() if tensor.shape != found[name].shape]
        if wrong:
            shapes = f"{tuple(found[wrong[0]].shape)}, expected {tuple(expected[wrong[0]].shape)}"
            raise ValueError(f"{wrong[0]} has shape {shapes}: use the dim and codebook_size it was trained with")
        self.book.load_state_dict({name: found[name] for name in expected})


@register("sim_vq")
class SimVQ(CodebookQuantizer):
    """The codebook in use is ``C' = C Wᵀ``; W is trained, C is frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    A linear map cannot reach every codebook (in one dimension C' = wC), so k-means is not a limit of its training.

    Args:
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

    def __init__(
        self, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Unpack[CodebookOptions]
    ) -> None:
        super().__init__(dim, codebook_size, codebook_dim, **options)
        linear = nn.Linear(self.codebook_dim, self.codebook_dim, bias=False)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, linear))


TOKENS = 256
"""Tokens at most unless the size of a group is given: attention then costs little beside the search, for any K."""


@register("bridge_vq")
class BridgeVQ(CodebookQuantizer):
    """The codebook in use is ``C' = recover(C, process(compress(C)))``; C and the projector are trained.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    Groups of codes become tokens, which attend to each other, so one step moves every code.

    Args:
        codes_per_token: size of a group; None: as many as make at most :data:`TOKENS` tokens.
        width: of the tokens.
        heads: of the attention; a divisor of the width.
        depth: attention blocks.
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
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
        if codes_per_token is None:
            codes_per_token = -(-codebook_size // TOKENS)
        for name, value in (("codes_per_token", codes_per_token), ("width", width), ("heads", heads), ("depth", depth)):
            positive_int(name, value)
        if width % heads:
            raise ValueError(f"heads must divide width {width}, got {heads}")
        bridge = CodeBridge(self.codebook_dim, codes_per_token, width, heads, depth)
        self._own(TransformedCodes(codebook_size, self.codebook_dim, bridge, trains_base=True))
