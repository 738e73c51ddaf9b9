"""Measures memory of a call."""

from collections.abc import Callable

import torch


def largest_allocation(run: Callable[[], object]) -> int:
    """Bytes of the largest single CPU allocation while ``run`` runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = profile.profiler.kineto_results.events()
    return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)
