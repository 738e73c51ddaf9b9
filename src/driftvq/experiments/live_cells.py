"""What a user sees while cells run."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from driftvq.experiments.plan import CellPlan, Plan
from driftvq.files import records_of
from driftvq.records.comparisons import CELLS, TRAINING, read_cell
from driftvq.records.metric_table import plain_label, with_unit
from driftvq.records.runs import METRICS_FILE

TAIL_BYTES = 16_384
SHOWN = ("psnr", "usage")


class LiveCells:
    """An overall bar and a line for each running cell on stderr; plain lines if it is not a terminal."""

    def __init__(self, folder: Path, plan: Plan, console: Console | None = None) -> None:
        self.folder, self.plan = folder, plan
        self.console = console or Console(file=sys.stderr)
        self.finished: set[str] = set()
        self.begun: dict[str, float] = {}
        self.lines: dict[str, TaskID] = {}
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
