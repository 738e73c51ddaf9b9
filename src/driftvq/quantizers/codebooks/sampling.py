"""Rows of a batch drawn at random, the same ones in every process.

Shape suffixes: n latents, m rows drawn, k codes, d dimensions.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from driftvq.functional import seeded_gumbel
from driftvq.quantizers.distributed import gather_rows, row_counts, sum_over_processes, world_size


def sample_rows(x_nd: Tensor, weight_n: Tensor, count: int, seed: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Rows drawn without replacement, by weight, from the batch that all processes hold together; the same in each.

    Args:
        x_nd: this process's rows.
        weight_n: their weights.
        count: how many to draw.
        seed: the same in each process.
        sizes: the processes' :func:`row_counts`.

    Returns:
        The rows ``(count, d)`` and, as an int64 scalar, how many of them could be drawn; the others are zero.
    """
    before = sum(sizes[: dist.get_rank()]) if world_size() > 1 else 0
    noise_n = seeded_gumbel(sum(sizes), seed)[before : before + len(x_nd)]
    keys = gather_rows((weight_n.float().log() + noise_n)[:, None], sizes)[:, 0]
    keys_m, places_m = keys.topk(min(count, len(keys)))
    drawn_m = keys_m.isfinite()
    here_m = drawn_m & (places_m >= before) & (places_m < before + len(x_nd))
    zero_row = x_nd.new_zeros(1, x_nd.shape[1])
    rows_md = torch.cat([x_nd, zero_row])[torch.where(here_m, places_m - before, len(x_nd))]
    (rows_md,) = sum_over_processes(rows_md)
    return torch.cat([rows_md, zero_row.expand(count - len(rows_md), -1)]), drawn_m.sum()


def take_over(
    codes_kd: Tensor, free_k: Tensor, latents_nd: Tensor, weight_n: Tensor, share: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """Let random latents take over free codes, each latent at most one.

    Args:
        codes_kd: the codes.
        free_k: which of them may be taken, boolean.
        latents_nd: this process's latents.
        weight_n: the weights they are drawn by; those of weight 0 are never drawn.
        share: of the batch's latents that may each take over a code.
        seed: the same in each process.

    Returns:
        The codes afterwards ``(k, d)``, and which were taken over ``(k,)``.
    """
    sizes = row_counts(latents_nd)
    most = min(len(codes_kd), max(1, int(share * sum(sizes))))
    rows_md, available = sample_rows(latents_nd, weight_n, most, seed, sizes)
    order_k = free_k.cumsum(dim=0)
    taken_k = free_k & (order_k <= available)
    fresh_kd = rows_md[(order_k - 1).clamp(min=0, max=most - 1)].to(codes_kd.dtype)
    return torch.where(taken_k[:, None], fresh_kd, codes_kd), taken_k
