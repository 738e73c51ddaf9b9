"""The highest of many scores by blocks of matrix products: the way that every device has.

Shape suffixes: n latents, k codes, d dimensions, b latents of one block.
"""

import torch
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks
from driftvq.functional.scoring import Scoring

EXPORTED_BLOCK_CODES = 1024
EXPORTED_BLOCKS = 64
"""An exported graph spells its blocks out: no more of them than this."""


def nearest_by_blocks(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the highest score of every latent; float32 as precise as torch's matrix products are set to be."""
    return highest_by_blocks(scoring.centred(x_nd), scoring.weight_kd, scoring.penalty_k, beta=-0.5)


def highest_by_blocks(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """``argmax_k (x·w_k + β b_k)``, in blocks of latents."""
    codes = len(weight_kd)
    indices_n = torch.empty(len(x_nd), dtype=torch.int64, device=x_nd.device)
    buffer_bk = x_nd.new_empty(min(len(x_nd), block_rows(codes, x_nd.device)), codes)
    for rows in row_blocks(len(x_nd), codes, x_nd.device):
        block_bk = buffer_bk[: rows.stop - rows.start]
        torch.addmm(bias_k, x_nd[rows], weight_kd.t(), beta=beta, out=block_bk)
        torch.argmax(block_bk, dim=1, out=indices_n[rows])
    return indices_n


def highest_by_blocks_of_codes(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """The same in blocks of codes: in a graph that is exported their number is known, that of latents is not."""
    codes = len(weight_kd)
    step = max(EXPORTED_BLOCK_CODES, -(-codes // EXPORTED_BLOCKS))
    best_n = index_n = None
    for start in range(0, codes, step):
        end = min(start + step, codes)
        block_nb = torch.addmm(bias_k[start:end], x_nd, weight_kd[start:end].t(), beta=beta)
        highest_n, place_n = block_nb.max(dim=1)
        if best_n is None or index_n is None:
            best_n, index_n = highest_n, place_n
            continue
        index_n = torch.where(highest_n > best_n, place_n + start, index_n)
        best_n = torch.maximum(best_n, highest_n)
    assert index_n is not None
    return index_n
