"""The highest of many scores by blocks of matrix products: the way that every device has.

Shape suffixes: n latents, k codes, d dimensions, b latents of one block.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks
from driftvq.functional.scoring import Scoring

EXPORTED_BLOCK_CODES = 1024
"""Codes of one block in an exported graph, where a block has all latents."""


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
    """The same in blocks of codes: in a graph that is exported their number is known, that of latents is not.

    A loop in the graph, as blocks one after the other would all be computed, and kept, before the first is used.
    """
    codes = len(weight_kd)
    if codes <= EXPORTED_BLOCK_CODES:
        return torch.addmm(bias_k, x_nd, weight_kd.t(), beta=beta).argmax(dim=1)
    from torch._higher_order_ops.scan import scan

    blocks = -(-codes // EXPORTED_BLOCK_CODES)
    missing = blocks * EXPORTED_BLOCK_CODES - codes
    weight_bcd = F.pad(weight_kd, (0, 0, 0, missing)).unflatten(0, (blocks, EXPORTED_BLOCK_CODES))
    never = -torch.inf if beta > 0 else torch.inf
    bias_bc = F.pad(bias_k, (0, missing), value=never).unflatten(0, (blocks, EXPORTED_BLOCK_CODES))
    start_b = torch.arange(blocks, device=x_nd.device) * EXPORTED_BLOCK_CODES

    def better(best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor, Tensor]) -> tuple[Any, Tensor]:
        weight_cd, bias_c, start = block
        score_n, place_n = torch.addmm(bias_c, x_nd, weight_cd.t(), beta=beta).max(dim=1)
        index_n = torch.where(score_n > best[0], place_n + start, best[1])
        return (torch.maximum(score_n, best[0]), index_n), start.clone()

    none = (x_nd.new_full((len(x_nd),), -torch.inf), torch.zeros(len(x_nd), dtype=torch.int64, device=x_nd.device))
    (_, index_n), _ = scan(better, none, (weight_bcd, bias_bc, start_b))
    found: Tensor = index_n
    return found
