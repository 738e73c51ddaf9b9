import io

import pytest

from driftvq.tokens.progress import log_progress, show_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_with_count_and_speed(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("encoding", 100) as progress:
        for done in range(0, 101, 20):
            progress(done)
    text = stderr.getvalue()
    assert "encoding" in text
    assert "100/100" in text
    assert "images/s" in text


def test_a_log_gets_a_line_now_and_then_that_does_not_count_earlier_runs(capsys):
    times = iter([0.0, 10.0, 40.0, 50.0, 100.0])
    progress = log_progress("encoding", 4000, every=30.0, clock=lambda: next(times))
    for done in (1000, 1100, 1400, 1500, 2000):
        progress(done)
    assert capsys.readouterr().err.splitlines() == [
        "encoding: 1,400 of 4,000, 10.0 images/s, 00:04:20 to go",
        "encoding: 2,000 of 4,000, 10.0 images/s, 00:03:20 to go",
    ]


def test_a_short_run_logs_nothing(capsys):
    with show_progress("encoding", 2) as progress:
        progress(0)
        progress(2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("done", [10, 12])
def test_the_end_has_no_time_to_go(done, capsys):
    times = iter([0.0, 60.0])
    progress = log_progress("decoding", 10, clock=lambda: next(times))
    progress(0)
    progress(done)
    assert capsys.readouterr().err.endswith("00:00:00 to go\n")
