"""How a set of images uses the codebook: counts that grow batch by batch, and what they say."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from driftvq.functional import count_codes, perplexity, usage


class CodeCounter:
    """Counts codes over batches of indices; memory does not grow with the images.

    Args:
        codebook_size: number of codes, K, of each codebook.
    """

    def __init__(self, codebook_size: int) -> None:
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.codebook_size = codebook_size
        self.counts_qk: Tensor | None = None
        self.images = 0
        self.indices = 0

    def update(self, indices: Tensor) -> None:
        """Count one batch, ``b h w`` or ``b h w q`` with an index in each of q codebooks; -1 is not counted."""
        if indices.ndim not in (3, 4) or indices.is_floating_point():
            raise ValueError(f"indices must be integers b h w or b h w q, got {indices.dtype} {tuple(indices.shape)}")
        if indices.numel() and not -1 <= int(indices.min()) <= int(indices.max()) < self.codebook_size:
            found = f"{int(indices.min())} to {int(indices.max())}"
            raise ValueError(f"indices must lie between -1 and {self.codebook_size - 1}, got {found}")
        places = indices.long().reshape(-1, indices.shape[3] if indices.ndim == 4 else 1)
        counts_qk = torch.stack([count_codes(place, self.codebook_size) for place in places.unbind(1)]).cpu()
        if self.counts_qk is not None and len(self.counts_qk) != len(counts_qk):
            raise ValueError(f"indices per position must stay {len(self.counts_qk)}, got {len(counts_qk)}")
        self.counts_qk = counts_qk if self.counts_qk is None else self.counts_qk + counts_qk
        self.images += len(indices)
        self.indices += int((indices >= 0).sum())

    def usage(self) -> float:
        """Share of codes selected at least once; the mean over codebooks if there are several."""
        return self._mean(usage)

    def perplexity(self) -> float:
        """How many equally used codes would carry as much information; the mean over codebooks."""
        return self._mean(perplexity)

    def bits_per_image(self) -> float:
        """Indices per image times log2 K: the size of an image's tokens without entropy coding."""
        return self.indices / max(self.images, 1) * math.log2(self.codebook_size)

    def _mean(self, measure: Callable[[Tensor], Tensor]) -> float:
        if self.counts_qk is None:
            return math.nan
        return float(sum(float(measure(counts_k)) for counts_k in self.counts_qk) / len(self.counts_qk))
