import csv
import io
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from driftvq.cli import main
from driftvq.experiments.engine import latest
from driftvq.records.comparisons import update_cell
from tests.experiments.conftest import one_thread  # noqa: F401 - of every test here
from tests.experiments.smoke import Ended, in_process


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, and cells that run in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "driftvq.experiments.engine.start_cell", lambda folder, place, **share: in_process(folder, place)
    )
    return tmp_path


def test_compare_prints_the_table_and_says_where_the_report_is(here, capsys):
    assert main(["compare", "--scale", "smoke", "--methods", "vq", "ns_vq", "--out", "x"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("| Method | PSNR")
    assert "NS-VQ (driftvq)" in output.out
    assert f"report: {Path('x') / 'report.html'}" in output.err
    assert {"report.html", "results.json", "results.csv", "comparison.json", "originals", "cells"} <= {
        path.name for path in (here / "x").iterdir()
    }
    for form in ("csv", "json", "latex"):
        assert main(["compare", "--resume", "x", "--format", form]) == 0
        text = capsys.readouterr().out
        if form == "csv":
            assert [row["method"] for row in csv.DictReader(io.StringIO(text))] == ["vq", "ns_vq"]
        elif form == "json":
            assert len(json.loads(text)["rows"]) == 2
        else:
            assert r"\begin{tabular}" in text


def test_a_failed_cell_makes_the_command_fail_after_the_table(here, capsys, monkeypatch):
    def start(folder, place):
        if "fsq" not in folder.name:
            return in_process(folder, place)
        update_cell(folder, status="failed", error="broke")
        return Ended(1)

    monkeypatch.setattr("driftvq.experiments.engine.start_cell", lambda folder, place, **share: start(folder, place))
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--scale", "smoke", "--methods", "vq", "fsq", "--out", "x"])
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert "VQ-VAE" in output.out
    assert "1 of 2 cells failed" in output.err
    assert "log.txt" in output.err


def test_an_interruption_says_how_to_go_on(here, capsys, monkeypatch):
    def start(folder, place):
        if "fsq" in folder.name:
            raise KeyboardInterrupt
        return in_process(folder, place)

    monkeypatch.setattr("driftvq.experiments.engine.start_cell", lambda folder, place, **share: start(folder, place))
    assert main(["reproduce", "compare", "--scale", "smoke", "--methods", "vq", "fsq", "--out", "x"]) == 130
    assert "To continue: driftvq compare --resume x" in capsys.readouterr().err
    assert (here / "x" / "report.html").is_file()
    monkeypatch.setattr(
        "driftvq.experiments.engine.start_cell", lambda folder, place, **share: in_process(folder, place)
    )
    assert main(["compare", "--resume", "x"]) == 0
    assert "FSQ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--methods", "nsvq"], "unknown method 'nsvq'; known, nearest first: ns_vq,"),
        (["compare", "--scale", "labtop"], "unknown scale 'labtop'; known, nearest first: laptop,"),
        (["reproduce", "tabel-3d"], "unknown recipe 'tabel-3d'; known, nearest first: table-3d,"),
        (["compare", "--scale", "paper"], "--scale paper needs images: --data SPEC"),
        (["compare", "--format", "late"], "unknown format 'late'; known, nearest first: latex,"),
        (["reproduce"], "which one? Known recipes: table-2,"),
        (["compare", "--resume"], "--resume needs the comparison to continue"),
        (["compare", "--resume", "absent"], "absent is no comparison to resume"),
        (["compare", "--data", "absent"], "no such file or folder: absent"),
        (["compare", "--evaluation-images", "100000"], "and --evaluation-images wants 100000"),
    ],
)
def test_mistakes_are_one_line_before_any_work(here, capsys, words, message):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(here.iterdir()) == []


def test_another_comparison_is_not_overwritten(here, capsys):
    words = ["compare", "--scale", "smoke", "--out", "x", "--methods"]
    assert main([*words, "vq"]) == 0
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*words, "fsq", "--resume"]) == 2
    assert "these differ: methods: ('vq',) → ('fsq',)" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_help_answers_without_torch(command):
    code = (
        "import sys\nfrom driftvq.cli import main\n"
        f"try: main([{command!r}, '--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@contextmanager
def running(words):
    """``driftvq compare`` in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "driftvq.cli", "compare", "--scale", "smoke", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as engine:
        try:
            yield engine
        finally:
            engine.kill()


def wait_for_step(cell, step, engine):
    deadline = time.monotonic() + 240
    while latest(cell)[0] < step:
        assert engine.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_comparison_goes_on_where_it_was(tmp_path):
    words = ["--methods", "vq", "ns_vq", "--steps", "30", "--jobs", "1", "--out", str(tmp_path)]
    second = tmp_path / "cells" / "ns_vq--k32-d3-b4--seed0"
    with running(words) as engine:
        wait_for_step(second, 6, engine)
    first = tmp_path / "cells" / "vq--k32-d3-b4--seed0" / "cell.json"
    before = first.stat().st_mtime_ns
    command = [sys.executable, "-m", "driftvq.cli", "compare", "--resume", str(tmp_path)]
    resumed = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert resumed.returncode == 0, resumed.stderr
    assert first.stat().st_mtime_ns == before
    record = json.loads((second / "cell.json").read_text())
    assert (record["status"], record["steps"]) == ("done", 30)
    assert "NS-VQ" in resumed.stdout


@pytest.mark.slow
def test_ctrl_c_stops_the_processes_and_saves_them(tmp_path):
    cell = tmp_path / "cells" / "vq--k32-d3-b4--seed0"
    with running(["--methods", "vq", "--steps", "100000", "--out", str(tmp_path)]) as engine:
        wait_for_step(cell, 5, engine)
        engine.send_signal(signal.SIGINT)
        _, error = engine.communicate(timeout=60)
    assert engine.returncode == 130
    assert f"driftvq compare --resume {tmp_path}" in error
    assert json.loads((cell / "cell.json").read_text())["status"] == "waiting"
    assert list((cell / "training" / "checkpoints").glob("*.ckpt"))
