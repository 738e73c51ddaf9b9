import errno
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftvq.files import (
    LOCK_FILE,
    dated_folder,
    locked,
    open_regular,
    read_object,
    read_records,
    records_of,
    replacing,
    write_text,
)
from driftvq.names import shortened
from tests.limits import ends_within


def test_replaces_the_file_with_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    usual = tmp_path / "usual"
    usual.write_text("")
    assert write_text(path, "new\r\n") == path
    assert path.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert {file.name for file in tmp_path.iterdir()} == {"a.txt", "usual"}


def fail_halfway(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError("No space left on device")


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        fail_halfway(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"


def test_says_what_is_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_text(tmp_path / "nowhere" / "a.txt", "")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_text(tmp_path, "")


def test_only_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with open_regular(tmp_path / "x") as file:
        assert file.read() == b"abc"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with ends_within(20), pytest.raises(OSError, match="a pipe or device, not a file"):
            open_regular(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, "ü"]}', encoding="utf-8")
    assert read_object(path) == {"a": [1, "ü"]}
    assert read_object(path, max_bytes=path.stat().st_size) == {"a": [1, "ü"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"a": 1', "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b'{"a": ' * 100_000, "is not valid JSON"),
        (b'{"a": 1' + b"0" * 400 + b"}", "is not valid JSON: a number of 401 digits"),
        (b"[]", r"holds \[\]; allowed: an object"),
        (b"[" + b"1, " * 100 + b"1]", "holds .{79}…; allowed: an object"),
    ],
)
def test_other_content_is_an_error_that_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json {message}"):
        read_object(path)


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"a\.json has 7 bytes; allowed: at most 6"):
        read_object(path, max_bytes=6)


def test_lines_of_a_crash_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = b"[" * 100_000
    torn = b'{"step": 1, "a": 2}\n[1]\n{"a": 1}\n\xff\xfe\n' + deep + b'\n{"step": 2, "a": 3}\n{"step": 3, "a'
    path.write_bytes(torn)
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_files_without_an_end_are_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    os.truncate(path, 1 << 28)  # sparse: nothing on the disk
    with path.open("ab") as file:
        file.write(b'\n{"step": 2}\n')
    tracemalloc.start()
    assert [record["step"] for record in read_records(path)] == [1, 2]
    assert tracemalloc.get_traced_memory()[1] < 1 << 27
    tracemalloc.stop()
    with pytest.raises(ValueError, match=r"metrics\.jsonl has 268435469 bytes; allowed: at most 268435456"):
        read_object(path)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with ends_within(20), pytest.raises(OSError, match="a pipe or device, not a file"):
        read_object(tmp_path / "a.json")
    assert read_records(tmp_path / "a.json") == []


def test_numbers_and_lists_that_cannot_be_shown() -> None:
    assert shortened(10**5000) == "a int too large to show"


def test_a_line_with_a_number_that_no_float_holds_is_none() -> None:
    assert records_of(['{"step": 1, "a": -1' + "0" * 400 + "}", '{"step": 2, "a": -1}']) == [{"step": 2, "a": -1}]


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none.jsonl") == []


@given(st.lists(VALUES), st.integers(0, 40))
def test_records_are_the_whole_lines_with_a_step(values: list[object], cut: int) -> None:
    text = "".join(json.dumps(value) + "\n" for value in [{"step": 1}, *values, {"step": 2, "a": values}])
    expected = [value for value in values if isinstance(value, dict) and isinstance(value.get("step"), int)]
    lines = text.splitlines()
    assert records_of(lines) == [{"step": 1}, *expected, {"step": 2, "a": values}]
    lines[-1] = lines[-1][: min(cut, len(lines[-1]) - 1)]
    assert records_of(lines) == [{"step": 1}, *expected]


def test_short_values_are_shown_whole() -> None:
    assert shortened("a" * 78) == repr("a" * 78)
    assert len(shortened("a" * 79)) == 80


HOLDER = """
import sys, time
from pathlib import Path
from driftvq.files import locked
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


def test_a_dated_folder_is_a_new_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("driftvq.files.datetime", Noon)
    first = dated_folder("{x}-NOW")
    assert first == Path("runs/{x}-20260102-120000")
    for number in (2, 3):
        first.mkdir(parents=True)
        first = dated_folder("{x}-NOW")
        assert first == Path(f"runs/{{x}}-20260102-120000-{number}")


class Noon(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 12)
