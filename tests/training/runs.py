"""Small training runs for the tests, in this process or in one that can be killed."""

import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook

from driftvq.cli import main

SMALL = {
    "size": 16,
    "batch-size": 4,
    "codebook-size": 32,
    "code-dim": 8,
    "steps": 12,
    "val-every": 4,
    "checkpoint-every": 4,
    "log-every": 1,
    "probe-every": 3,
    "val-images": 4,
    "workers": 0,
    "accelerator": "cpu",
    "precision": "32-true",
    "no-tensorboard": True,
}
"""Settings of a run that takes a second."""


def make_images(folder: Path, count: int = 24, side: int = 20) -> Path:
    """A folder of smooth random pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number:03d}.png")
    return folder


def arguments(images: Path, out: Path, **changes: Any) -> list[str]:
    """The command line of a small run, with changes; True is a bare flag, a list several words."""
    settings = {**SMALL, "data": images, "out": out, **{k.replace("_", "-"): v for k, v in changes.items()}}
    if "tensorboard" in settings:
        del settings["no-tensorboard"]
    words = ["train"]
    for name, value in settings.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def run_process(
    words: list[str],
    log: Path | None = None,
    largest_file: int | None = None,
    signal_at: tuple[int, int] | None = None,
    signals_in_checkpoint: tuple[int, ...] = (),
) -> multiprocessing.process.BaseProcess:
    """Start ``driftvq`` in a process of its own, without importing everything anew for each.

    Args:
        words: its arguments.
        log: where its output goes.
        largest_file: the system refuses to write larger files, as a full disk does.
        signal_at: a step, and the signal that the process receives right after the optimizer's part of it.
        signals_in_checkpoint: signals that it receives while it writes a checkpoint, one after the other.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.runs", "driftvq.training.run"])
    process = context.Process(target=_run, args=(words, log, largest_file, signal_at, signals_in_checkpoint))
    process.start()
    return process


def _run(
    words: list[str],
    log: Path | None,
    largest_file: int | None,
    signal_at: tuple[int, int] | None,
    signals_in_checkpoint: tuple[int, ...],
) -> None:
    torch.set_num_threads(1)
    with Path(os.devnull if log is None else log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal_at is not None:
        _send_at(*signal_at)
    if signals_in_checkpoint:
        _send_in_checkpoint(signals_in_checkpoint)
    sys.exit(main(words))


def _send_at(step: int, number: int) -> None:
    steps = itertools.count(1)

    def count(*_: Any) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(count)


def _send_in_checkpoint(numbers: tuple[int, ...]) -> None:
    save = torch.save

    def send_and_save(*arguments: Any) -> None:
        save(*arguments)
        for number in numbers:
            os.kill(os.getpid(), number)

    torch.save = send_and_save


def records(run: Path) -> list[dict[str, Any]]:
    """The log of a run."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def checkpoint(run: Path, step: int) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / f"step-{step:08d}.ckpt", weights_only=True)


def differences(first: Any, second: Any, where: str = "") -> list[str]:
    """Where two nested structures differ, by bits."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return [] if first.dtype == second.dtype and torch.equal(first, second) else [where]
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [key for key in {*first, *second} if key not in first or key not in second]
        return [f"{where}/{key}" for key in keys] + [
            found for key in first if key in second for found in differences(first[key], second[key], f"{where}/{key}")
        ]
    if isinstance(first, list | tuple) and isinstance(second, list | tuple) and len(first) == len(second):
        return [
            found
            for number, pair in enumerate(zip(first, second, strict=True))
            for found in differences(*pair, f"{where}/{number}")
        ]
    return [] if first == second else [where]


def alive(pid: int | str) -> bool:
    """Whether a process is there and not merely waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
