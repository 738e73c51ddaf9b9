"""Small comparisons for the tests, whose cells run in this process."""

from pathlib import Path
from typing import Any

from driftvq.experiments.cell import run_cell
from driftvq.experiments.comparison_folder import begin
from driftvq.experiments.design import Request
from driftvq.experiments.engine import Engine
from driftvq.experiments.methods import METHODS, resolved
from driftvq.experiments.plan import CellPlan, Plan, make_plan
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.settings import make_config


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class Silent:
    """Sees everything, says nothing."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def started(self, cell: CellPlan) -> None:
        self.events.append(("started", cell.name))

    def ended(self, cell: CellPlan, status: str) -> None:
        self.events.append((status, cell.name))

    def tick(self, running: list[CellPlan]) -> None: ...


def in_process(folder: Path, place: int) -> Ended:
    """Run a cell here and now."""
    return Ended({"done": 0, "waiting": 130}.get(run_cell(folder), 1))


def model_of(name: str) -> VQVAE:
    """A small model with the quantizer of a method."""
    settings = {"codebook_size": 64, "code_dim": 8, "size": 32, "batch_size": 4}
    config = resolved(make_config(settings, METHODS[name].settings), 100)
    return VQVAE(ModelConfig.from_dict(config.model_fields()))


def smoke_plan(**asked: Any) -> Plan:
    return make_plan(Request(**{"scale": "smoke", **asked}))


def run_plan(folder: Path, plan: Plan, start: Any = in_process, jobs: int = 1) -> Silent:
    """Begin and run a comparison."""
    begin(folder, plan)
    watcher = Silent()
    Engine(folder, plan, jobs, start, watcher).run()
    return watcher
