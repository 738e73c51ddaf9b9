import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import pytest

from driftvq.lock import LOCK_FILE, locked

HOLDER = """
import sys, time
from pathlib import Path
from driftvq.lock import locked
with locked(Path(sys.argv[1]), "training"):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock of a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def take(folder):
    with locked(folder, "training"):
        pass


def test_the_second_is_refused_and_told_who_is_there(tmp_path, holder):
    where = f"another training, process {holder.pid} on {socket.gethostname()}, is working in {tmp_path}"
    with pytest.raises(ValueError, match=where):
        take(tmp_path)


def test_a_dead_process_holds_nothing(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    take(tmp_path)


def test_the_lock_is_free_again_afterwards_also_after_an_error(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path, "training"):
        raise KeyError
    take(tmp_path)


def test_one_process_cannot_take_it_twice(tmp_path):
    with locked(tmp_path, "training"), pytest.raises(ValueError, match="another training"):
        take(tmp_path)


def test_it_waits_as_long_as_it_is_asked_to(tmp_path, holder):
    with pytest.raises(ValueError, match="another training"), locked(tmp_path, "training", seconds=0.3):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    with locked(tmp_path, "training", seconds=20):
        pass


def test_a_forked_worker_does_not_keep_it(tmp_path):
    context = multiprocessing.get_context("fork")
    started, end = context.Event(), context.Event()
    with locked(tmp_path, "training"):
        worker = context.Process(target=lambda: (started.set(), end.wait(20)))
        worker.start()
        assert started.wait(20)
    try:
        take(tmp_path)
    finally:
        end.set()
        worker.join()


def test_a_process_that_was_given_it_keeps_it(tmp_path):
    with locked(tmp_path, "comparison") as descriptor:
        code = "import sys; sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    with pytest.raises(ValueError, match="another comparison"):
        take(tmp_path)
    child.communicate()
    take(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch, number):
    def refuse(*args):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    take(tmp_path)
    assert (tmp_path / LOCK_FILE).exists()
