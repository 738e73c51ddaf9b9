"""How codes are used: usage, perplexity and bits, counted over batches of indices."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from driftvq.functional import count_codes, perplexity, usage
from driftvq.quantizers.quantizer import Quantizer
from driftvq.records import metric_table


class CodeCounter:
    """Counts how often each code is selected, over batches of indices; memory does not grow with the images.

    Given a quantizer, it knows the size of each codebook, which indices choose from the same one, and which positions
    share a choice; given a ``codebook_size``, each index has a codebook of that size of its own.
    """

    def __init__(self, codes: int | Quantizer) -> None:
        self.quantizer = None if isinstance(codes, int) else codes
        self.codebook_size = codes if isinstance(codes, int) else codes.codebook_size
        if self.codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codes}")
        self.images, self.indices, self.bits = 0, 0, 0.0
        self.sizes: tuple[int, ...] = ()  # of each index's codebook, and its number
        self.books: tuple[int, ...] = ()
        self.counts: list[Tensor] = []  # of each codebook, how often each of its codes was selected ``(k,)``
        if self.quantizer is not None:
            self._expect(self.quantizer.sizes_per_index, self.quantizer.books_per_index)

    def _expect(self, sizes: tuple[int, ...], books: tuple[int, ...]) -> None:
        self.sizes, self.books = sizes, books
        size_of = dict(zip(books, sizes, strict=True))
        self.counts = [torch.zeros(size_of[book], dtype=torch.int64) for book in sorted(size_of)]

    def update(self, indices: Tensor) -> None:
        """Count one batch, ``b h w`` or ``b h w q`` with an index in each of q codebooks; -1 is not counted."""
        if indices.ndim not in (3, 4) or indices.is_floating_point():
            raise ValueError(f"indices must be integers b h w or b h w q, got {indices.dtype} {tuple(indices.shape)}")
        if indices.numel() and not -1 <= int(indices.min()) <= int(indices.max()) < self.codebook_size:
            found = f"{int(indices.min())} to {int(indices.max())}"
            raise ValueError(f"indices must lie between -1 and {self.codebook_size - 1}, got {found}")
        width = indices.shape[3] if indices.ndim == 4 else 1
        if not self.sizes:
            self._expect((self.codebook_size,) * width, tuple(range(width)))
        if width != len(self.sizes):
            raise ValueError(f"indices per position must stay {len(self.sizes)}, got {width}")
        quantizer = self.quantizer
        choices = indices.reshape(-1, width).unbind(1) if quantizer is None else quantizer.choices_per_index(indices)
        for chosen, size, book in zip(choices, self.sizes, self.books, strict=True):
            counts_k = count_codes(chosen, size).cpu()
            self.counts[book] += counts_k
            self.indices += int(counts_k.sum())
            self.bits += int(counts_k.sum()) * math.log2(size)
        self.images += len(indices)

    def usage(self) -> float:
        """Share of codes selected at least once; the mean over codebooks if there are several."""
        return self._mean(usage)

    def perplexity(self) -> float:
        """How many equally used codes would carry as much information; the mean over codebooks."""
        return self._mean(perplexity)

    def bits_per_image(self) -> float:
        """Indices per image times log2 of their codebook's size: an image's tokens without entropy coding."""
        return self.bits / max(self.images, 1)

    def latents_per_code(self) -> float:
        """How many choices were counted for each code, in the codebook that has seen fewest."""
        return min((float(counts_k.sum()) / len(counts_k) for counts_k in self.counts), default=0.0)

    def expected_usage(self) -> float:
        """The usage that as many choices make of equally likely codes."""
        return self._mean(lambda counts_k: metric_table.expected_usage(len(counts_k), int(counts_k.sum())))

    def _mean(self, measure: Callable[[Tensor], Tensor | float]) -> float:
        if not self.counts:
            return math.nan
        return sum(float(measure(counts_k)) for counts_k in self.counts) / len(self.counts)
