import io
import re

import pytest

from driftvq.training.progress import LiveProgress, progress_line

VALUES = {"train/loss": 0.1234, "train/psnr": 20.0, "train/usage": 0.5, "quantizer/x": 3.0}


def show(values, steps=4):
    progress = LiveProgress(0, steps)
    for step in range(1, steps + 1):
        progress.show(step, values, last=step == steps)
    progress.close()


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    show(VALUES)
    captured = capsys.readouterr()
    first, last = captured.err.splitlines()
    assert re.fullmatch(r"step 1/4 · [\d.]+ steps/s · \d+:\d\d left · loss 0.1234 · PSNR 20.00 dB · usage 50%", first)
    assert last.startswith("step 4/4 · ")
    assert captured.out == ""


def test_nothing_is_shown_before_there_is_something_or_by_another_process(capsys):
    LiveProgress(0, 4).show(1, {"drift/usage": 0.5})
    LiveProgress(0, 4, visible=False).show(4, VALUES, last=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("columns", "end"), [(80, "usage 50%"), (120, "usage 50% · val PSNR 21.50 dB")])
def test_progress_is_a_bar_in_a_terminal(monkeypatch, columns, end):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    show({**VALUES, "val/psnr": 21.5})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    last = shown.rstrip().rpartition("\r")[2].rstrip()
    assert re.fullmatch(rf"━+ 4/4 [\d.]+/s 0:00:00 loss \d.* · PSNR \d.* dB · {end}", last)
    assert len(last) <= columns


def test_progress_line_with_hours():
    assert progress_line(100, 8100, 1.0, "") == "step 100/8100 · 1.0 steps/s · 2:13:20 left"
