import json
import signal

import pytest
import torch

from driftvq.experiments.cell import describe_error, run_cell
from driftvq.experiments.comparison_folder import begin
from driftvq.experiments.records import CELLS
from driftvq.files import read_object
from driftvq.models import VQVAE
from driftvq.training.loop import TrainingLoop
from driftvq.training.stopping import InterruptedTrainingError
from tests.experiments.smoke import smoke_plan


def one_cell(folder, **asked):
    plan = smoke_plan(**{"methods": ("ns_vq",), "steps": 6, **asked})
    begin(folder, plan)
    return folder / CELLS / plan.cells[0].name


def test_an_interrupted_cell_continues_to_the_same_model(tmp_path, monkeypatch):
    whole = one_cell(tmp_path / "whole")
    assert run_cell(whole) == "done"

    cut = one_cell(tmp_path / "cut")
    original = TrainingLoop.train_step

    def stop(self, batches):
        original(self, batches)
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "train_step", stop)
        assert run_cell(cut) == "waiting"
    assert (cut / "training" / "checkpoints").is_dir()
    assert run_cell(cut) == "done"
    first, second = (VQVAE.from_pretrained(folder / "model").state_dict() for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_object(whole / "cell.json")["values"] == read_object(cut / "cell.json")["values"]


def test_a_stop_request_leaves_a_cell_waiting(tmp_path, monkeypatch):
    cell = one_cell(tmp_path)

    def stop(*arguments, **options):
        raise InterruptedTrainingError(2, cell)

    monkeypatch.setattr("driftvq.training.run.train", stop)
    assert run_cell(cell) == "waiting"


def test_a_cell_that_only_lacks_its_evaluation_is_not_trained_again(tmp_path, monkeypatch):
    cell = one_cell(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("driftvq.metrics.evaluate", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no luck")))
        assert run_cell(cell) == "failed"
    record = read_object(cell / "cell.json")
    assert record["error"] == "RuntimeError: no luck"
    monkeypatch.setattr("driftvq.training.run.train", lambda *a, **k: pytest.fail("trained again"))
    assert run_cell(cell) == "done"
    assert read_object(cell / "cell.json")["seconds"]["train"] == record["seconds"]["train"]


def test_what_a_cell_costs_is_kept(tmp_path):
    cell = one_cell(tmp_path, methods=("vqvae2",))
    assert run_cell(cell) == "done"
    record = read_object(cell / "cell.json")
    model = VQVAE.from_pretrained(cell / "model")
    network = sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters())
    assert record["parameters"] == {"network": network, "quantizer": 32 * 3}
    assert record["steps"] == 6
    assert 0 < record["ms_per_step"] < 1000 * record["seconds"]["train"]
    assert record["peak_memory_mb"] > 50
    assert record["seconds"]["evaluate"] > 0
    lines = [json.loads(line) for line in (cell / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 6
    assert any("val/psnr" in line for line in lines)


def test_errors_are_one_line():
    assert describe_error(ValueError("two\nlines")) == "two lines"
    assert describe_error(RuntimeError("x")) == "RuntimeError: x"
    assert describe_error(MemoryError()) == "MemoryError"
