"""Sums and gathers over all processes; without a process group each is the identity.

Whether a process group is running is asked at every call, so a module may be built before the group is.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from driftvq.functional import random_positions


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


def gather_rows(x_nd: Tensor) -> Tensor:
    """All processes' rows, in the order of the processes; their numbers may differ."""
    if world_size() == 1:
        return x_nd
    sizes = _row_counts(torch.tensor(len(x_nd), device=x_nd.device)).tolist()
    padded = x_nd.new_zeros(max(sizes), x_nd.shape[1])
    padded[: len(x_nd)] = x_nd
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def sample_rows(x_nd: Tensor, valid_n: Tensor, count: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """``count`` random valid rows of the batch that all processes hold together, the same in each of them.

    Returns:
        The rows ``(count, d)`` and, as an int64 scalar, how many of them are distinct; beyond it they repeat, and where
        no process has a valid row they are zero.
    """
    available = valid_n.sum()
    before, total = torch.zeros_like(available), available
    if world_size() > 1:
        counts = _row_counts(available)
        before, total = counts[: dist.get_rank()].sum(), counts.sum()
    local = random_positions(total, count, seed) - before
    mine = (local >= 0) & (local < available)
    rows = torch.searchsorted(valid_n.cumsum(dim=0), local + 1)
    padded = torch.cat([x_nd, x_nd.new_zeros(1, x_nd.shape[1])])
    found = padded[torch.where(mine, rows, len(x_nd))]
    return sum_over_processes(found)[0], total


def _row_counts(count: Tensor) -> Tensor:
    counts = torch.zeros(world_size(), dtype=torch.int64, device=count.device)
    counts[dist.get_rank()] = count
    dist.all_reduce(counts)
    return counts
