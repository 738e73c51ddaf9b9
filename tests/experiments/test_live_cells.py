import io

from rich.console import Console

from driftvq.experiments.comparison_folder import begin
from driftvq.experiments.engine import LiveCells, latest
from driftvq.records.comparisons import CELLS, update_cell
from tests.experiments.smoke import smoke_plan


def test_the_latest_values_of_a_running_cell(tmp_path):
    assert latest(tmp_path) == (0, {})
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "metrics.jsonl").write_text(
        '{"step": 10, "train/psnr": 20.5, "train/usage": 0.5}\n{"step": 20, "val/psnr": 21.5}\n{"step": 3'
    )
    assert latest(tmp_path) == (20, {"psnr": 21.5, "usage": 0.5})


def test_a_terminal_shows_the_running_cells_and_a_file_the_ends(tmp_path):
    plan = smoke_plan(methods=("vq", "fsq"))
    begin(tmp_path, plan)
    first, second = plan.cells
    for terminal in (True, False):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=terminal, width=200)
        with LiveCells(tmp_path, plan, console) as live:
            live.started(first)
            (tmp_path / CELLS / first.name / "metrics.jsonl").write_text('{"step": 1, "val/psnr": 12.25}\n')
            live.tick([first])
            if live.bar is not None:
                live.bar.refresh()
            update_cell(tmp_path / CELLS / first.name, status="done", values={"psnr": 12.5})
            live.ended(first, "done")
            live.started(second)
            update_cell(tmp_path / CELLS / second.name, status="failed", error="[bold]broke")
            live.ended(second, "failed")
        text = screen.getvalue()
        assert f"[1/2] {first.name}: PSNR 12.50 dB" in text
        assert f"[2/2] {second.name}: failed: [bold]broke" in text
        assert "log.txt" in text
        assert ("step 1/2" in text) == terminal
        update_cell(tmp_path / CELLS / first.name, status="waiting")
