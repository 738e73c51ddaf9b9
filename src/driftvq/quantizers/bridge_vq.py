"""FVQ (Chang et al., 2025): a projector over all codes, which compresses, processes and recovers them (VQBridge)."""

from typing import ClassVar, Unpack

from driftvq.names import positive_int
from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.networks import CodeBridge
from driftvq.quantizers.codebooks.transformed import TransformedCodes
from driftvq.quantizers.registry import register

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
