"""A comparison from its plan to its report."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from driftvq.experiments.comparison_folder import begin, cores
from driftvq.experiments.engine import Engine, Starter
from driftvq.experiments.live_cells import LiveCells
from driftvq.experiments.plan import Plan
from driftvq.files import locked
from driftvq.report import write_report, write_results

LOCK_SECONDS = 30.0
"""How long to wait for cells that an engine left behind: they save a checkpoint and end."""


class Share(NamedTuple):
    """How a machine is shared out: cells at a time, threads of each, and GPUs."""

    jobs: int
    threads: int
    gpus: int


def share_machine(jobs: int | None, cells: int) -> Share:
    """One cell per GPU, or per core without one, unless asked otherwise; the cores are shared equally."""
    import torch

    gpus, available = torch.cuda.device_count(), cores()
    if jobs is None:
        one_device = torch.backends.mps.is_available()
        jobs = gpus or (1 if one_device else available)
    jobs = max(1, min(jobs, cells))
    return Share(jobs, max(1, available // jobs), gpus)


def run_comparison(folder: Path, plan: Plan, jobs: int, threads: int, gpus: int) -> Path:
    """Run what is left of a comparison and return its report.

    Raises:
        KeyboardInterrupt: it was stopped; the report shows what there is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "comparison", LOCK_SECONDS) as lock:
        begin(folder, plan)
        try:
            with LiveCells(folder, plan) as watcher:
                Engine(folder, plan, jobs, Starter(threads, gpus, lock), watcher).run()
        except KeyboardInterrupt:
            with suppress(OSError, ValueError):
                finish(folder)
            raise
        return finish(folder)


def finish(folder: Path) -> Path:
    """Write the results and the report from what is on disk."""
    write_results(folder)
    return write_report(folder)
