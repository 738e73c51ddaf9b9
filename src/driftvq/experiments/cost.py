"""What a training costs: time per step, memory and parameters."""

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from driftvq.inspection.codebook import count_parameters
from driftvq.models import VQVAE


class StepClock:
    """When each optimizer step ended.

    The median of the times between them leaves out validations and checkpoints, which few of the intervals contain.
    """

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, *arguments: Any) -> None:
        self.times.append(time.perf_counter())

    def ms_per_step(self) -> float | None:
        """None without two steps."""
        between = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return 1000 * statistics.median(between) if between else None


@contextmanager
def step_clock() -> Iterator[StepClock]:
    """Count the steps of every optimizer of this process."""
    clock = StepClock()
    handle = register_optimizer_step_post_hook(clock)
    try:
        yield clock
    finally:
        handle.remove()


def peak_memory_mb() -> float:
    """The most memory that this process has had so far: of its GPU if it uses one, else of the machine."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def parameters_of(model: VQVAE) -> dict[str, int]:
    """Numbers in the network and in the quantizer, codes that no optimizer trains included."""
    counts = count_parameters(model)
    return {"network": counts["encoder"] + counts["decoder"], "quantizer": counts["quantizer"] + counts["codes"]}
