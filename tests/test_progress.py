import io
import re
from collections.abc import Callable

import pytest

from driftvq.progress import Progress, counted, progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_a_log_gets_a_line_now_and_then_that_does_not_count_earlier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("encoding", 4000, clock=at(0, 1, 10, 20, 41))
    for count in (1000, 10, 90, 100, 300):
        progress.add(count)
    assert capsys.readouterr().err.splitlines() == [
        "encoding 1100/4000 · 10.0 images/s · 4:50 left",
        "encoding 1500/4000 · 12.2 images/s · 3:25 left",
    ]


def test_what_takes_no_time_says_nothing_but_its_end_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("step", 4, "steps", clock=at(0, 0.5, 1)) as progress:
        progress.show(0)
        progress.show(2, "loss 0.5")
        assert capsys.readouterr().err == ""
        progress.show(4, "loss 0.4", last=True)
    captured = capsys.readouterr()
    assert (captured.err, captured.out) == ("step 4/4 · 4.0 steps/s · 0:00 left · loss 0.4\n", "")


def test_another_process_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("step", 4, visible=False, clock=at(0, 100))
    progress.show(0)
    progress.show(4, last=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_bar_that_fits(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress("encoding", 100) as progress:
        assert progress.wide == (columns == 120)
        for count in (0, 20, 80):
            progress.add(count)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    last = shown.rstrip().rpartition("\r")[2].rstrip()
    assert re.fullmatch(r"encoding ━+ 100/100 [\d,.]+ images/s 0:00:00", last)
    assert len(last) <= columns


@pytest.mark.parametrize(
    ("done", "total", "rate", "line"),
    [
        (100, 8100, 1.0, "x 100/8100 · 1.0 steps/s · 2:13:20 left"),
        (12, 10, 1.0, "x 12/10 · 1.0 steps/s · 0:00 left"),
        (3, 10, 0.0, "x 3/10 · 0.0 steps/s"),
        (3, None, 2.0, "x 3 · 2.0 steps/s"),
    ],
)
def test_a_line_says_how_long_it_takes_if_that_can_be_known(
    done: int, total: int | None, rate: float, line: str
) -> None:
    assert progress_line("x", done, total, rate, "steps") == line


def test_a_long_scan_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(10_000))
    assert list(counted(range(256 * 50 + 7), "images found", clock=lambda: 1.0 * next(clock))) == list(range(12807))
    counts = [int(re.match(r"images found (\d+) · ", line)[1]) for line in capsys.readouterr().err.splitlines()]  # type: ignore[index]
    assert counts[-1] == 12807, "the last line says how many there were"
    assert len(counts) < 6
    assert counts == sorted(counts)


def test_a_short_scan_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert list(counted(range(2000), "images")) == list(range(2000))
    assert screen.getvalue() == ""
