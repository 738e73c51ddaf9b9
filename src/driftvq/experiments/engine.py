"""Runs a comparison from its plan to its report: its cells, several at a time, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from driftvq.experiments.cell import ENGINE, THREADS
from driftvq.experiments.comparison_folder import begin, find_folder
from driftvq.experiments.plan import CellPlan, Plan
from driftvq.files import locked, records_of
from driftvq.machine import cores
from driftvq.records.comparisons import CELLS, LOG_FILE, TRAINING, Status, read_cell, update_cell
from driftvq.records.metric_table import plain_label, with_unit
from driftvq.records.runs import METRICS_FILE
from driftvq.report import write_report, write_results
from driftvq.training.stopping import signals_to

POLL_SECONDS = 0.2
STOP_SECONDS = 60.0  # how long cells may take to save a checkpoint after an interruption
LOCK_SECONDS = 30.0  # how long to wait for cells that an engine left behind: they save a checkpoint and end
TAIL_BYTES = 16_384
SHOWN = ("psnr", "usage")

Process = subprocess.Popen[bytes]
Start = Callable[[Path, int], Process]  # starts the cell of a folder at a place from 0 to jobs - 1


class LiveCells:
    """An overall bar and a line for each running cell on stderr; plain lines if it is not a terminal."""

    def __init__(self, folder: Path, plan: Plan, console: Console | None = None) -> None:
        self.folder, self.plan = folder, plan
        self.console = console or Console(file=sys.stderr)
        self.finished, self.begun, self.lines = set[str](), dict[str, float](), dict[str, TaskID]()
        self.bar: Progress | None = None
        self.whole = TaskID(0)

    def __enter__(self) -> "LiveCells":
        cells = self.folder / CELLS
        self.finished = {cell.name for cell in self.plan.cells if read_cell(cells / cell.name).status == "done"}
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self.bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console)
            total = sum(cell.config.steps or 0 for cell in self.plan.cells)
            self.whole = self.bar.add_task("all cells", total=total, text="")
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def started(self, cell: CellPlan) -> None:
        self.begun[cell.name] = time.monotonic()
        if self.bar is not None:
            self.lines[cell.name] = self.bar.add_task(f"  {cell.name}", total=cell.config.steps, text="starting")

    def ended(self, cell: CellPlan, status: str) -> None:
        self.finished.add(cell.name)
        record = read_cell(self.folder / CELLS / cell.name)
        seconds = time.monotonic() - self.begun[cell.name]
        if self.bar is not None:
            self.bar.remove_task(self.lines.pop(cell.name))
        what = shown(record.values) if status == "done" else f"failed: {record.error or 'it could not even record why'}"
        log = f"; log: {record.log_path}" if status == "failed" else ""
        line = f"[{len(self.finished)}/{len(self.plan.cells)}] {cell.name}: {what} ({seconds:.0f} s){log}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tick(self, running: list[CellPlan]) -> None:
        if self.bar is None:
            return
        steps = sum(cell.config.steps or 0 for cell in self.plan.cells if cell.name in self.finished)
        for cell in running:
            step, values = latest(self.folder / CELLS / cell.name)
            steps += step
            text = "evaluating" if step >= (cell.config.steps or 0) else f"step {step}/{cell.config.steps}"
            line = " · ".join(filter(None, [text, shown(values)]))
            self.bar.update(self.lines[cell.name], completed=step, text=line)
        self.bar.update(self.whole, completed=steps, text=f"{len(self.finished)} of {len(self.plan.cells)} cells")


def shown(values: dict[str, Any]) -> str:
    """PSNR and usage in words."""
    found = {name: values[name] for name in SHOWN if values.get(name) is not None}
    return ", ".join(f"{plain_label(name)} {with_unit(name, value)}" for name, value in found.items())


def latest(cell: Path) -> tuple[int, dict[str, float]]:
    """The last step that a cell has logged, and its latest PSNR and usage: of validation, else of training."""
    running = cell / TRAINING / METRICS_FILE
    records, values = [], dict[str, float]()
    with suppress(OSError), (running if running.exists() else cell / METRICS_FILE).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        records = records_of(file.read().decode("utf-8", errors="replace").splitlines())
    for record in records:
        for name in SHOWN:
            for key in (f"train/{name}", f"val/{name}"):
                if isinstance(record.get(key), int | float):
                    values[name] = record[key]
    return max((record["step"] for record in records), default=0), values


class Engine:
    """The cells of a comparison on their way from waiting to done or failed.

    A failed cell does not stop the others. Cells that another one depends on come first. ``jobs`` run at a time.
    """

    def __init__(self, folder: Path, plan: Plan, jobs: int, start: Start, watcher: LiveCells) -> None:
        self.folder, self.plan, self.jobs, self.start, self.watcher = folder, plan, jobs, start, watcher
        self.running: dict[int, tuple[CellPlan, Process]] = {}
        self.status = {cell.name: self._read_status(cell) for cell in plan.cells}

    def run(self) -> None:
        """Run all cells that are not done, failed ones again; Ctrl-C and SIGTERM stop them until they go on."""
        waiting = [cell for cell in self.plan.cells if self.status[cell.name] != "done"]
        for cell in waiting:
            self.status[cell.name] = "waiting"
        with signals_to(signal.default_int_handler, [signal.SIGTERM]):
            try:
                while waiting or self.running:
                    self._start_some(waiting)
                    self._collect()
                    self.watcher.tick([cell for cell, _ in self.running.values()])
                    if self.running:
                        time.sleep(POLL_SECONDS)
            except BaseException:
                self._stop()
                raise

    def _start_some(self, waiting: list[CellPlan]) -> None:
        for cell in list(waiting):
            place = next((place for place in range(self.jobs) if place not in self.running), None)
            if place is None:
                return
            if cell.after is not None and self.status[cell.after] in ("waiting", "running"):
                continue
            waiting.remove(cell)
            self.running[place] = cell, self.start(self.folder / CELLS / cell.name, place)
            self.status[cell.name] = "running"
            self.watcher.started(cell)

    def _collect(self) -> None:
        for place, (cell, process) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[place]
            status = self._read_status(cell)
            if status not in ("done", "failed"):  # it could not record its end
                status = "failed"
                with suppress(OSError):
                    update_cell(self.folder / CELLS / cell.name, status=status, error=_ending(code))
            self.status[cell.name] = status
            with suppress(OSError):  # a full disk: the cells that are done stay, and the end will say so
                write_results(self.folder)
            self.watcher.ended(cell, status)

    def _read_status(self, cell: CellPlan) -> Status:
        return read_cell(self.folder / CELLS / cell.name).status

    def _stop(self) -> None:
        """Let the running cells save their state and end; those that do not are killed."""
        processes = [process for _, process in self.running.values()]
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)  # SIGINT is ignored by what a script began with &
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()
        for cell, _ in self.running.values():
            if self._read_status(cell) == "running":
                with suppress(OSError):
                    update_cell(self.folder / CELLS / cell.name, status="waiting")
        self.running.clear()


def start_cell(folder: Path, place: int, threads: int, gpus: int, lock: int) -> Process:
    """Start a cell with its share of the machine, a GPU by its place; it holds ``lock`` open as long as it lives."""
    names = (THREADS, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, ENGINE: str(os.getpid()), **dict.fromkeys(names, str(threads))}
    if gpus > 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place % gpus]
    with (folder / LOG_FILE).open("ab") as log:
        command = [sys.executable, "-m", "driftvq.experiments.cell", str(folder)]
        options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        # In a session of its own: Ctrl-C is for the engine, which passes it on.
        return subprocess.Popen(command, start_new_session=True, pass_fds=(lock,), **options)


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", perhaps for lack of memory" if name == "SIGKILL" else ""
    return f"its process was stopped by {name}{hint}"


def share_machine(jobs: int | None, cells: int) -> tuple[int, int, int]:
    """Cells at a time, one per GPU, or per core without one, unless asked otherwise; threads of each; and GPUs."""
    gpus, available = torch.cuda.device_count(), cores()
    if jobs is None:
        jobs = gpus or (1 if torch.backends.mps.is_available() else available)
    jobs = max(1, min(jobs, cells))
    return jobs, max(1, available // jobs), gpus


def run_comparison(folder: Path, plan: Plan, jobs: int, threads: int, gpus: int, resume: bool = False) -> Path:
    """Run what is left of a comparison and return its report, which after an interruption shows what there is."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "comparison", LOCK_SECONDS) as lock:
        find_folder(plan.request, folder, resume)
        begin(folder, plan)
        try:
            with LiveCells(folder, plan) as watcher:
                Engine(folder, plan, jobs, partial(start_cell, threads=threads, gpus=gpus, lock=lock), watcher).run()
        except KeyboardInterrupt:
            with suppress(OSError, ValueError):
                finish(folder)
            raise
        return finish(folder)


def finish(folder: Path) -> Path:
    """Write the results and the report from what is on disk."""
    write_results(folder)
    return write_report(folder)
