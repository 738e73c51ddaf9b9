"""Sums and gathers over all processes; without a process group each is the identity.

Whether a process group is running is asked at every call, so a module may be built before the group is.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from driftvq.functional import seeded_gumbel


def world_size() -> int:
    """Number of processes that take part in a collective now."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def sum_over_processes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor summed over all processes; the same bits everywhere."""
    if world_size() == 1:
        return tensors
    summed = [tensor.contiguous().clone() for tensor in tensors]
    for tensor in summed:
        dist.all_reduce(tensor)
    return tuple(summed)


def from_first_process(tensor: Tensor) -> Tensor:
    """The first process's value of a tensor that has the same shape everywhere."""
    if world_size() == 1:
        return tensor
    tensor = tensor.contiguous().clone()
    dist.broadcast(tensor, src=0)
    return tensor


def total_rows(x_nd: Tensor) -> int:
    """Number of rows that all processes hold together."""
    return len(x_nd) if world_size() == 1 else sum(_row_counts(x_nd))


def gather_rows(x_nd: Tensor) -> Tensor:
    """All processes' rows, in the order of the processes; their numbers may differ."""
    if world_size() == 1:
        return x_nd
    sizes = _row_counts(x_nd)
    padded = x_nd.new_zeros(max(sizes), x_nd.shape[1])
    padded[: len(x_nd)] = x_nd
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def sample_rows(x_nd: Tensor, weight_n: Tensor, count: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Rows drawn without replacement, by weight, from the batch that all processes hold together; the same in each.

    Returns:
        The rows ``(count, d)`` and, as an int64 scalar, how many of them could be drawn; the others are zero.
    """
    before, total = 0, len(x_nd)
    if world_size() > 1:
        sizes = _row_counts(x_nd)
        before, total = sum(sizes[: dist.get_rank()]), sum(sizes)
    noise_n = seeded_gumbel(total, seed)[before : before + len(x_nd)]
    keys_n, rows_n = (weight_n.float().log() + noise_n).topk(min(count, len(x_nd)))
    keys_m, rows_md = gather_rows(keys_n[:, None])[:, 0], gather_rows(x_nd[rows_n])
    if world_size() > 1:
        keys_m, order_m = keys_m.topk(min(count, len(keys_m)))
        rows_md = rows_md[order_m]
    drawn_m = keys_m.isfinite()
    rows_md = torch.where(drawn_m[:, None], rows_md, 0)
    return torch.cat([rows_md, rows_md.new_zeros(count - len(rows_md), x_nd.shape[1])]), drawn_m.sum()


def _row_counts(x_nd: Tensor) -> list[int]:
    """Number of rows of each process."""
    counts = torch.zeros(world_size(), dtype=torch.int64, device=x_nd.device)
    counts[dist.get_rank()] = len(x_nd)
    dist.all_reduce(counts)
    sizes: list[int] = counts.tolist()
    return sizes
