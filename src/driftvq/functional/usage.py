"""How a codebook is used: counts, usage, perplexity."""

import torch
from torch import Tensor

from driftvq.functional.blocks import widest_float


def count_codes(indices: Tensor, codebook_size: int) -> Tensor:
    """How often each code was selected, int64 ``(codebook_size,)``; negative ones (masked positions) do not count."""
    flat, counts = indices.flatten().long(), torch.zeros(codebook_size, dtype=torch.int64, device=indices.device)
    return counts.index_add_(0, flat.clamp(min=0), (flat >= 0).to(torch.int64))


def usage(counts_k: Tensor) -> Tensor:
    """Share of codes selected at least once, ``|{k : n_k > 0}| / K``."""
    return (counts_k > 0).to(widest_float(counts_k.device)).mean()


def perplexity(counts_k: Tensor) -> Tensor:
    """``exp(H(p))`` with ``p_k = n_k / Σn``: how many equally used codes would carry as much information.

    1 when a single code is used, K when all are used equally, 0 when nothing was counted.
    """
    total = counts_k.sum()
    p_k = counts_k.to(widest_float(counts_k.device)) / total.clamp(min=1)
    equivalent_codes: Tensor = torch.special.entr(p_k).sum().exp()
    return equivalent_codes * (total > 0)
