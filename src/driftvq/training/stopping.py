"""Why a run stops before its last step, and how all of its processes then end together."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined] # it is there, says its documentation

from driftvq.models import VQVAE
from driftvq.training.fabric import LAUNCHED, all_processes, any_process, is_first_process, rank

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class TrainingStoppedError(RuntimeError):
    """The run ended before its last step."""


class InterruptedTrainingError(TrainingStoppedError):
    """Somebody asked the run to stop, and a checkpoint was saved."""

    def __init__(self, step: int, run: Path) -> None:
        super().__init__(f"stopped after step {step}, everything is saved in {run}")
        self.step, self.run = step, run


class NonFiniteError(TrainingStoppedError):
    """A loss, the latents or the weights became NaN or infinite."""


@contextmanager
def signals_to(handle: Handler, numbers: Sequence[int] = SIGNALS) -> Iterator[dict[int, Any]]:
    """Inside, signals go to a function, and afterwards where they went before, as yielded; the main thread gets all."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, handle) for number in numbers}
    handled = tuple(before)
    try:
        yield before
    finally:
        for number in handled:
            signal.signal(number, before[number])


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C or SIGTERM is a request, which the function tells of; further ones go where they went before."""
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if len(requests) > 1:
            if not callable(before[number]):
                raise KeyboardInterrupt
            before[number](number, frame)

    with signals_to(note) as before:
        yield lambda: bool(requests)


class FiniteGuard:
    """Stops all processes together when a number is not finite, and lists the images that they were working on.

    In training the latents of the model are watched, before they can reach the codebook.
    """

    def __init__(self, run: Path, model: VQVAE) -> None:
        self.run, self.step = run, 0
        self.names: Sequence[str] = ()

        def check_latents(encoder: nn.Module, inputs: object, latents: Tensor) -> None:
            if encoder.training:
                self.check("latents", latents)

        model.encoder.register_forward_hook(check_latents)

    @contextmanager
    def at(self, step: int, names: Sequence[str]) -> Iterator[None]:
        """Inside, these images are worked on; a quantizer that finds no finite numbers is an error of theirs."""
        self.step, self.names = step, names
        try:
            yield
        except (ValueError, LinAlgError) as error:
            if isinstance(error, ValueError) and "finite" not in str(error):
                raise
            raise self._error("the quantizer's numbers", [list(names)]) from error

    def check(self, what: str, value: Tensor) -> None:
        """Stop if a value is not finite in any process."""
        if any_process(not bool(value.detach().isfinite().all()), value.device):
            raise self._error(what, all_processes(list(self.names)))

    def check_weights(self, model: nn.Module) -> None:
        """Stop if a weight is not finite, so that no such checkpoint is written."""
        weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        broken = [name for name, value in weights.items() if not value.isfinite().all()]
        if any_process(bool(broken), next(iter(weights.values())).device):
            raise self._error(f"weight {', '.join(broken[:1])}".rstrip(), all_processes(list(self.names)))

    def _error(self, what: str, names: list[list[str]]) -> NonFiniteError:
        path = self.run / f"nan-step-{self.step}.json"
        if rank() == 0 or len(names) == 1:
            report = {"step": self.step, "not_finite": what, "images": [name for batch in names for name in batch]}
            path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if len(names) > 1:
            all_processes(None)  # no process is gone before the list is written
        listed = f"the images of that step are listed in {path}; try a smaller --learning-rate or --clip 1"
        return NonFiniteError(f"{what} became NaN or infinite at step {self.step}; {listed}")


FAILED, INTERRUPTED = 1, 130  # exit codes
# How often to look, how long processes may take to end in order, how long to look into a lost connection.
POLL_SECONDS, GRACE_SECONDS, VERDICT_SECONDS = 0.2, 3.0, 15.0
SHOW_CURSOR = "\x1b[?25h\n"

_children: list["subprocess.Popen[bytes]"] = []


@contextmanager
def launched(fabric: Fabric, run: Path) -> Iterator[None]:
    """Inside, all processes of a run are there, and end with a line that names the one that is killed."""
    known = LAUNCHED in os.environ
    os.environ[LAUNCHED] = str(run)  # those that Fabric starts write where the first one does
    fabric.launch()
    started = getattr(fabric.strategy.launcher, "procs", [])
    _children.extend(started)
    started.clear()  # or Fabric's own observer would kill this process without a word when another one ends
    if not known:
        del os.environ[LAUNCHED]
    parent, over = os.getppid() if known and not is_first_process() else None, threading.Event()
    watch = threading.Thread(target=_watch, args=(fabric.world_size, run, parent, over), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        lost = isinstance(error, RuntimeError) and not isinstance(error, TrainingStoppedError)
        if lost and fabric.world_size > 1:  # a connection, perhaps: the watch knows whose
            watch.join(VERDICT_SECONDS)
        for child in _children:  # without this process they cannot go on
            child.kill()
        raise
    finally:
        over.set()
        _children.clear()


def _watch(processes: int, run: Path, parent: int | None, over: threading.Event) -> None:
    """Notice when a process that this one started, or that started this one, is gone."""
    while (_children or parent is not None) and not over.wait(POLL_SECONDS):
        gone = _gone(parent)
        if gone is None or over.wait(GRACE_SECONDS):
            continue
        number, code = gone
        if code == INTERRUPTED:
            end_at_once("driftvq train: interrupted", INTERRUPTED)
        how = "is gone"
        if code is not None:
            how = f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        line = f"process {number} of {processes} {how}; the others were stopped"
        silent = os.environ.get("LOCAL_RANK", "0") not in ("0", "1")
        end_at_once(f"driftvq train: error: {line}; to continue: driftvq train --resume {run}", FAILED, silent)


def _gone(parent: int | None) -> tuple[int, int | None] | None:
    """The number of a process that is gone, from 0, and its exit code if that is known."""
    if parent is not None:
        return None if os.getppid() == parent else (0, None)
    codes = {number: child.poll() for number, child in enumerate(_children, start=1)}
    lost = {number: code for number, code in codes.items() if code}
    # Of several, the one that a signal ended came first: the others only lost their connection to it.
    return min(lost.items(), key=lambda item: item[1], default=None)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, a signal that no training waits for ends the process with one line and exit code 130."""

    def end(number: int, frame: object) -> None:
        end_at_once("driftvq train: interrupted", INTERRUPTED, silent=not is_first_process())

    with signals_to(end) as before:
        try:
            yield
        except InterruptedTrainingError:
            before |= dict.fromkeys(SIGNALS, signal.SIG_IGN)  # the process is ending; asking again cannot hasten it
            raise


def end_at_once(line: str, code: int, silent: bool = False) -> NoReturn:
    """End this process and those that it started, whatever they are waiting for."""
    for child in _children:
        child.kill()
    for worker in multiprocessing.active_children():  # they read images, and would wait for ever to hand them over
        worker.kill()
    if not silent:
        os.write(sys.stderr.fileno(), (SHOW_CURSOR * sys.stderr.isatty() + line + "\n").encode())
    os._exit(code)
