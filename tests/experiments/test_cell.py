import json
import signal
from dataclasses import replace

import pytest
import torch

from driftvq.experiments.cell import describe_error, run_cell
from driftvq.experiments.comparison_folder import begin
from driftvq.experiments.design import Condition
from driftvq.experiments.measuring import UsageProbe
from driftvq.experiments.recipes import RECIPES
from driftvq.files import read_records
from driftvq.models import VQVAE
from driftvq.records.comparisons import CELLS, read_cell
from driftvq.training.loop import TrainingLoop
from driftvq.training.settings import make_config
from driftvq.training.stopping import InterruptedTrainingError
from tests.experiments.smoke import smoke_plan


@pytest.fixture
def probing(monkeypatch):
    """A recipe whose cells count usage after two steps, and train in other units after a warm-up."""
    conditions = (Condition({"warm_up": 1, "latent_scale": 10.0}),)
    recipe = replace(RECIPES["collapse-few"], name="probing", conditions=conditions, probes=(2,))
    monkeypatch.setitem(RECIPES, "probing", recipe)
    return "probing"


def one_cell(folder, **asked):
    plan = smoke_plan(**{"methods": ("ns_vq",), "steps": 6, **asked})
    begin(folder, plan)
    return folder / CELLS / plan.cells[0].name


@pytest.mark.parametrize("recipe", ["compare", "probing"])
@pytest.mark.parametrize("stop_at", [2, 4])
def test_an_interrupted_cell_continues_to_the_same_model(tmp_path, monkeypatch, probing, recipe, stop_at):
    whole = one_cell(tmp_path / "whole", recipe=recipe)
    assert run_cell(whole) == "done"

    cut = one_cell(tmp_path / "cut", recipe=recipe)
    original = TrainingLoop.train_step

    def stop(self, batches):
        original(self, batches)
        if self.step == stop_at:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "train_step", stop)
        assert run_cell(cut) == "waiting"
    assert (cut / "training" / "checkpoints").is_dir()
    assert run_cell(cut) == "done"
    first, second = (VQVAE.from_pretrained(folder / "model").state_dict() for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_cell(whole).values == read_cell(cut).values
    assert ("usage@2" in read_cell(whole).values) == (recipe == "probing")


def test_a_probing_cell_says_what_it_counted_and_what_the_codebook_did(tmp_path, probing):
    cell = one_cell(tmp_path, recipe=probing)
    assert run_cell(cell) == "done"
    record = read_cell(cell)
    assert record.config["steps"] == 7
    assert {"usage@2", "perplexity@2", "usage", "relocated", "drift_followed", "thinnest"} <= record.values.keys()
    logged = {r["step"]: r["probe/usage"] for r in read_records(cell / "metrics.jsonl") if "probe/usage" in r}
    assert logged == {3: record.values["usage@2"]}
    # 1,600 needed of each: 25 images of 64 latents
    assert record.usage_over == "100 latents per code (held-out images, training images)"
    model = VQVAE.from_pretrained(cell / "model")
    assert record.values["usage"] == UsageProbe(make_config(record.config)).read(model)["usage"]


def test_a_stop_request_leaves_a_cell_waiting(tmp_path, monkeypatch):
    cell = one_cell(tmp_path)

    def stop(*arguments, **options):
        raise InterruptedTrainingError(2, cell)

    monkeypatch.setattr("driftvq.experiments.cell.train", stop)
    assert run_cell(cell) == "waiting"


def test_a_cell_that_only_lacks_its_evaluation_is_not_trained_again(tmp_path, monkeypatch):
    cell = one_cell(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("driftvq.experiments.measuring.evaluate", lambda *a, **k: 1 / 0)
        assert run_cell(cell) == "failed"
    record = read_cell(cell)
    assert record.error == "ZeroDivisionError: division by zero"
    monkeypatch.setattr("driftvq.experiments.cell.train", lambda *a, **k: pytest.fail("trained again"))
    assert run_cell(cell) == "done"
    assert read_cell(cell).seconds["train"] == record.seconds["train"]


def test_what_a_cell_costs_is_kept(tmp_path):
    cell = one_cell(tmp_path, methods=("vqvae2",))
    assert run_cell(cell) == "done"
    record = read_cell(cell)
    model = VQVAE.from_pretrained(cell / "model")
    network = sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters())
    assert record.parameters == {"network": network, "quantizer": 32 * 3}
    assert record.steps == 6
    assert 0 < record.ms_per_step < 1000 * record.seconds["train"]
    assert record.peak_memory_mb > 50
    assert set(record.seconds) == {"train", "evaluate"}
    lines = [json.loads(line) for line in (cell / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) == 6
    assert any("val/psnr" in line for line in lines)


def test_errors_are_one_line():
    assert describe_error(ValueError("two\nlines")) == "two lines"
    assert describe_error(RuntimeError("x")) == "RuntimeError: x"
    assert describe_error(MemoryError()) == "MemoryError"
