"""Random choices that are the same in every process and do not touch the global random state."""

import torch
from torch import Tensor


def random_positions(high: Tensor, count: int, seed: Tensor) -> Tensor:
    """A random order of the positions below ``high``, a function of ``seed`` alone: the same on every device.

    The first ``min(count, high)`` are all different; beyond that the order repeats.

    Args:
        high: int64 scalar; positions are all 0 when it is 0.
        count: how many positions to return.
        seed: int64 scalar, e.g. a step counter.

    Returns:
        int64 positions ``(count,)`` on the device of ``high``.
    """
    positions: Tensor = _random_positions_op(high, count, seed)
    return positions


@torch.library.custom_op("driftvq::random_positions", mutates_args=())
def _random_positions_op(high: Tensor, count: int, seed: Tensor) -> Tensor:
    size = max(int(high), 1)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(int(seed)))
    return order[torch.arange(count) % size].to(high.device)


@_random_positions_op.register_fake
def _(high: Tensor, count: int, seed: Tensor) -> Tensor:
    return high.new_empty(count, dtype=torch.int64)
