"""What the processes that train together agree on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from driftvq.quantizers.distributed import world_size


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process; all get the same answer."""
    if world_size() == 1:
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


def all_processes(value: Any) -> list[Any]:
    """The plain value of each process, in the order of the processes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Inside, parts of a module can be called by themselves, even if a strategy spreads its weights over processes.

    All processes have to enter together.
    """
    if FullyShardedDataParallel.fsdp_modules(module):
        with FullyShardedDataParallel.summon_full_params(module, writeback=False):
            yield
    else:
        yield
