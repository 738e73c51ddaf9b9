"""Time and memory of calls, measured so that they can be compared within one run."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def best_times(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each call, the best of several rounds; the calls take turns, so a busy moment hits them all."""
    best = dict.fromkeys(calls, float("inf"))
    for name, call in calls.items():
        call()
        best[name] = float("inf")
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: 1e3 * seconds for name, seconds in best.items()}


def memory_growth(call: Callable[[], object]) -> float:
    """Megabytes by which the peak resident memory of this process grows while the call runs twice."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def in_fresh_process(script: Path, *arguments: str) -> float:
    """Run a script that prints one JSON number as its last line."""
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name} {' '.join(arguments)} failed:\n{done.stderr}")
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    """What the numbers were measured on."""
    import platform

    import torch

    return f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}"
