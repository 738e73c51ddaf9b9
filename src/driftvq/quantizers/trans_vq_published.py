"""TransVQ as in the authors' published code."""

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from driftvq.quantizers.codebook import CodebookOptions, CodebookQuantizer
from driftvq.quantizers.codebooks.networks import PublishedTransformer
from driftvq.quantizers.codebooks.transformed import TransformedCodes
from driftvq.quantizers.registry import register

WIDTH, MLP_RATIO = 256, 2
"""The published network's sizes."""

NAMES = {"frozen_codebook": "base", "code_transform.": "transform."}
"""Beginnings of the authors' names, and of ours in the codebook."""


@register("trans_vq_published")
class TransVQPublished(CodebookQuantizer):
    """The authors' form: ``C' = P_φ(C + a learned vector per code)``, over frozen Gaussian noise.

    ``loss = mse(sg z, c') + β · mse(z, sg c')``

    P_φ: in-projection, the learned vectors, one pre-norm block of single-head linear attention and an MLP, a last norm,
    out-projection (:class:`driftvq.quantizers.codebooks.networks.PublishedTransformer`). Given the authors' weights
    (:meth:`load_published_`), codebook, indices, loss and gradients are theirs.

    Args:
        options: see :class:`driftvq.quantizers.codebook.CodebookQuantizer`.
    """

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
