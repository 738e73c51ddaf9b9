import io
import sys

import pytest

from driftvq.data import progress
from driftvq.data.progress import counted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes 0.9 seconds."""
    times = iter(range(10_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.9 * next(times))


@pytest.mark.usefixtures("clock")
def test_a_long_scan_is_counted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(counted(range(2000), "images")) == list(range(2000))
    lines = terminal.getvalue().split("\r")
    assert lines[1] == f"images: {3 * 256}"  # 2.7 seconds
    assert lines[-1] == "images: 2,000\n"


@pytest.mark.usefixtures("clock")
def test_a_log_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    list(counted(range(256 * 100), "images"))
    assert log.getvalue().splitlines() == [f"images: {256 * 34:,}", f"images: {256 * 68:,}"]


def test_a_short_scan_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    list(counted(range(2000), "images"))
    assert terminal.getvalue() == ""
