"""Random choices that are the same in every process and do not touch the global random state."""

import torch
from torch import Tensor


def seeded_gumbel(count: int, seed: Tensor) -> Tensor:
    """``count`` float32 Gumbel numbers, a function of ``seed`` alone: the same for every device.

    The positions of the largest ``log w_i + g_i`` are a draw without replacement with probabilities proportional to w.

    Args:
        count: how many.
        seed: int64 scalar, e.g. a step counter.

    Returns:
        Numbers ``(count,)`` on the device of the seed.
    """
    numbers: Tensor = _seeded_gumbel_op(count, seed)
    return numbers


@torch.library.custom_op("driftvq::seeded_gumbel", mutates_args=())
def _seeded_gumbel_op(count: int, seed: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int(seed))
    exponential = torch.empty(count, dtype=torch.float64).exponential_(generator=generator)
    return exponential.clamp_(min=1e-300).log_().neg_().to(torch.float32).to(seed.device)


@_seeded_gumbel_op.register_fake
def _(count: int, seed: Tensor) -> Tensor:
    return seed.new_empty(count, dtype=torch.float32)
