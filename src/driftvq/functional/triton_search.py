# ruff: noqa: N803 - constants of a kernel
"""Nearest code by one fused kernel on NVIDIA's and AMD's GPUs: scores of latents × codes never leave the registers.

``index = argmax_k ((x - origin)·w_k - penalty_k / 2)``. Triton comes with torch for GPUs; nothing else imports this.

Shape suffixes: n latents, k codes, d dimensions, p parts of the codebook.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from driftvq.functional.blocks import TILE_CODES, TILE_LATENTS
from driftvq.functional.search import Scoring

MAX_DIMS = 256
BROADCAST_DIMS = 8  # up to here a product of tiles would be mostly padding: dimensions are added one after the other
PROGRAMS_PER_PROCESSOR = 4  # so many keep it busy; few latents make as many only if the codebook is searched in parts
WARPS = 4


def constants(dims: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Constants of the kernel for so many dimensions, and options of its compilation."""
    tile_dims = 1 if dims <= BROADCAST_DIMS else 16 if dims <= 16 else 32
    tiles = {"TILE_N": TILE_LATENTS, "TILE_K": TILE_CODES, "TILE_D": tile_dims}
    return {"DIMS": dims, "BROADCAST": dims <= BROADCAST_DIMS, **tiles}, {"num_warps": WARPS}


def nearest_by_triton(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the highest score of every latent: float32, of at most :data:`MAX_DIMS` dimensions, at least one."""
    latents, dims = x_nd.shape
    codes, blocks = len(scoring.weight_kd), -(-latents // TILE_LATENTS)
    codes_per_part = _codes_per_part(blocks, codes, _processors(x_nd.device))
    parts = -(-codes // codes_per_part)
    kernel_constants, options = constants(dims)
    best_pn = torch.empty(parts, latents, device=x_nd.device)
    index_pn = torch.empty(parts, latents, dtype=torch.int64, device=x_nd.device)
    tensors = (x_nd.contiguous(), scoring.origin_d, scoring.weight_kd.contiguous(), scoring.penalty_k)
    with torch.cuda.device_of(x_nd):  # Triton launches on the current device, whatever the tensors' is
        kernel[(blocks, parts)](
            *tensors, best_pn, index_pn, latents, codes, codes_per_part, **kernel_constants, **options
        )
    return index_pn[0] if parts == 1 else index_pn.gather(0, best_pn.argmax(dim=0, keepdim=True))[0]


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def _codes_per_part(blocks: int, codes: int, processors: int) -> int:
    """Codes of one program, a multiple of its tile."""
    parts = max(1, PROGRAMS_PER_PROCESSOR * processors // blocks)
    tiles_per_part = -(-codes // (TILE_CODES * parts))
    return TILE_CODES * tiles_per_part


def _tile_scores(  # type: ignore[no-untyped-def]
    x_nd, origin_d, weight_kd, score_nk, n, k, latents, end,
    DIMS: tl.constexpr, BROADCAST: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    for low in range(0, DIMS, TILE_D):
        d = low + tl.arange(0, TILE_D)
        inside = d < DIMS
        x = tl.load(x_nd + n[:, None] * DIMS + d[None, :], (n[:, None] < latents) & inside[None, :], 0.0)
        if origin_d is not None:
            x -= tl.load(origin_d + d, inside, 0.0)[None, :]
        w = tl.load(weight_kd + k[None, :] * DIMS + d[:, None], (k[None, :] < end) & inside[:, None], 0.0)
        score_nk = tl.fma(x, w, score_nk) if BROADCAST else tl.dot(x, w, score_nk, input_precision="ieee")
    return score_nk


_scores = triton.jit(_tile_scores)


def _highest_scores(  # type: ignore[no-untyped-def]
    x_nd, origin_d, weight_kd, penalty_k, best_pn, index_pn, latents, codes, codes_per_part,
    DIMS: tl.constexpr, BROADCAST: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    n = tl.program_id(0).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    begin = part * codes_per_part
    end = tl.minimum(begin + codes_per_part, codes)
    # Each place of the tile keeps its own best and in which tile that was; the places are compared once, at the end.
    best_nk = tl.full((TILE_N, TILE_K), float("-inf"), tl.float32)
    tile_nk = tl.zeros((TILE_N, TILE_K), tl.int32) + begin
    for start in range(begin, end, TILE_K):
        k = start + tl.arange(0, TILE_K).to(tl.int64)
        penalty = tl.load(penalty_k + k, mask=k < end, other=float("inf"))  # past the last code the score is -inf
        score_nk = tl.zeros((TILE_N, TILE_K), tl.float32) - 0.5 * penalty[None, :]
        score_nk = _scores(x_nd, origin_d, weight_kd, score_nk, n, k, latents, end, DIMS, BROADCAST, TILE_D)
        better_nk = score_nk > best_nk  # never where the score is NaN
        best_nk = tl.where(better_nk, score_nk, best_nk)
        tile_nk = tl.where(better_nk, start, tile_nk)
    best_n = tl.max(best_nk, axis=1)
    k_nk = tile_nk + tl.arange(0, TILE_K)[None, :]
    index_n = tl.min(tl.where(best_nk == best_n[:, None], k_nk, codes), axis=1)
    tl.store(best_pn + part.to(tl.int64) * latents + n, best_n, mask=n < latents)
    tl.store(index_pn + part.to(tl.int64) * latents + n, index_n, mask=n < latents)


kernel = triton.jit(_highest_scores)
