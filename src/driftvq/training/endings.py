"""How processes end together: when one of them is gone, or when nobody wants to wait for a checkpoint."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from lightning.fabric import Fabric

from driftvq.training.folder import LAUNCHED, is_first_process
from driftvq.training.stopping import SIGNALS, InterruptedTrainingError, TrainingStoppedError

FAILED, INTERRUPTED = 1, 130
"""Exit codes."""
POLL_SECONDS, GRACE_SECONDS, VERDICT_SECONDS = 0.2, 3.0, 15.0
"""How often to look, how long processes may take to end in order, how long to look into a lost connection."""
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
    watch = _Watch(fabric.world_size, run, parent=os.getppid() if known and not is_first_process() else None)
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
        watch.over.set()
        _children.clear()


class _Watch(threading.Thread):
    """Notices when a process that this one started, or that started this one, is gone."""

    def __init__(self, processes: int, run: Path, parent: int | None) -> None:
        super().__init__(name="process-watch", daemon=True)
        self.processes, self.run_folder, self.parent = processes, run, parent
        self.over = threading.Event()

    def run(self) -> None:
        while (_children or self.parent is not None) and not self.over.wait(POLL_SECONDS):
            gone = self._gone()
            if gone is None or self.over.wait(GRACE_SECONDS):
                continue
            if gone[1] == INTERRUPTED:
                end_at_once("driftvq train: interrupted", INTERRUPTED)
            line = f"process {gone[0]} of {self.processes} {_ending(gone[1])}; the others were stopped"
            end_at_once(
                f"driftvq train: error: {line}; to continue: driftvq train --resume {self.run_folder}",
                FAILED,
                silent=os.environ.get("LOCAL_RANK", "0") not in ("0", "1"),
            )

    def _gone(self) -> tuple[int, int | None] | None:
        """The number of a process that is gone, from 0, and its exit code if that is known."""
        if self.parent is not None:
            return None if os.getppid() == self.parent else (0, None)
        codes = {number: child.poll() for number, child in enumerate(_children, start=1)}
        lost = {number: code for number, code in codes.items() if code}
        # Of several, the one that a signal ended came first: the others only lost their connection to it.
        return min(lost.items(), key=lambda item: item[1], default=None)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside, a signal that no training waits for ends the process with one line and exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        end_at_once("driftvq train: interrupted", INTERRUPTED, silent=not is_first_process())

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    except InterruptedTrainingError:
        before = dict.fromkeys(SIGNALS, signal.SIG_IGN)  # the process is ending; asking again cannot hasten it
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once(line: str, code: int, silent: bool = False) -> NoReturn:
    """End this process and those that it started, whatever they are waiting for."""
    for child in _children:
        child.kill()
    for worker in multiprocessing.active_children():  # they read images, and would wait for ever to hand them over
        worker.kill()
    if not silent:
        os.write(sys.stderr.fileno(), (SHOW_CURSOR * sys.stderr.isatty() + line + "\n").encode())
    os._exit(code)


def _ending(code: int | None) -> str:
    if code is None:
        return "is gone"
    if code > 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"
