"""A disk that is full at any one moment: what was there stays, nothing half-written is believed, and a run goes on."""

import json

import pytest
import torch
from torch import nn

from driftvq.files import read_records
from driftvq.records.runs import append_record, drop_records_after
from driftvq.training.checkpoints import find_checkpoint, list_checkpoints, read_checkpoint, save_checkpoint
from driftvq.training.config import TrainConfig
from driftvq.training.logs import SkippedImages
from driftvq.training.run import train, write_run_files
from driftvq.training.settings import make_config, read_settings
from tests.failing_disk import failing_disk
from tests.training.runs import checkpoint, differences, records
from tests.training.test_checkpoints import FABRIC
from tests.training.test_run import SMALL

TRIAL = pytest.mark.trial("a disk that is full at its k-th change, for all k")


def requests(folder, work, writes=True):
    """How many changes a piece of work makes below a folder; ``for k in …`` fails each of them."""
    with failing_disk(folder, 1 << 30, full=True, writes=writes) as disk:
        work()
    return disk.changes


def fail_at(folder, k, work, writes=True):
    with (
        failing_disk(folder, k, full=True, writes=writes),
        pytest.raises(OSError, match="No space left on device") as caught,
    ):
        work()
    return caught.value


@TRIAL
def test_a_checkpoint_is_there_or_not_and_the_one_before_stays(tmp_path, trials):
    def save(run, step):
        save_checkpoint(FABRIC, run, step, {"model": nn.Linear(3, 2), "step": step, "random": [1, 2]})

    save(tmp_path / "count", 1)
    count = requests(tmp_path, lambda: save(tmp_path / "count", 2))
    assert count > 20
    for k in range(count):
        with trials.one():
            run = tmp_path / str(k)
            save(run, 1)
            (path,) = list_checkpoints(run / "checkpoints")
            before = path.read_bytes()
            fail_at(tmp_path, k, lambda run=run: save(run, 2))
            assert path.read_bytes() == before
            assert all(read_checkpoint(found) for found in list_checkpoints(run / "checkpoints")), (
                "half of one has the name"
            )
            assert len(list(path.parent.iterdir())) == len(list_checkpoints(path.parent)), "something was left behind"
            save(run, 2)
            assert find_checkpoint(run, pytest.fail)[1] == 2


@TRIAL
def test_the_files_of_a_run_are_old_or_new(tmp_path, trials):
    write_run_files(tmp_path / "count", TrainConfig(seed=1), 10)
    count = requests(tmp_path, lambda: write_run_files(tmp_path / "count", TrainConfig(seed=2), 10))
    assert count >= 8
    for k in range(count):
        with trials.one():
            run = tmp_path / str(k)
            write_run_files(run, TrainConfig(seed=1), 10)
            fail_at(tmp_path, k, lambda run=run: write_run_files(run, TrainConfig(seed=2), 10))
            assert make_config(read_settings(run / "config.yaml")).seed in (1, 2)
            assert json.loads((run / "environment.json").read_text())["packages"]
            assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "environment.json"]


@TRIAL
def test_the_log_and_the_list_of_skipped_images_keep_what_they_had(tmp_path, trials):
    def work(run):
        append_record(run / "metrics.jsonl", 3, {"train/loss": 1.0})
        drop_records_after(run / "metrics.jsonl", 2)
        SkippedImages(run).add([("b.png", "empty")])

    def fresh(name):
        run = tmp_path / name
        run.mkdir()
        append_record(run / "metrics.jsonl", 2, {"train/loss": 2.0})
        SkippedImages(run).add([("a.png", "empty")])
        return run

    run = fresh("count")
    count = requests(tmp_path, lambda: work(run))
    assert count >= 6
    for k in range(count):
        with trials.one():
            run = fresh(str(k))
            fail_at(tmp_path, k, lambda run=run: work(run))
            assert read_records(run / "metrics.jsonl")[0] == {"step": 2, "train/loss": 2.0}
            assert (run / "skipped.txt").read_text().startswith("a.png\tempty\n")
            work(run)
            assert [record["step"] for record in read_records(run / "metrics.jsonl")] == [2]
            assert SkippedImages(run).count() == 2


@TRIAL
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_whose_disk_was_full_goes_on_to_the_same_end(stride, pictures, tmp_path, one_thread, trials):
    def config(name):
        settings = {**SMALL, "steps": 4, "checkpoint_every": 2, "probe_every": 2}
        return TrainConfig(**settings, data=str(pictures), out=str(tmp_path / name))

    whole = tmp_path / "whole"
    count = requests(tmp_path, lambda: train(config("whole")), writes=False)
    assert count > 40
    for k in range(0, count, stride):
        with trials.one():
            name = f"at-{k}"
            error = fail_at(tmp_path, k, lambda name=name: train(config(name)), writes=False)
            assert "\n" not in str(error)
            started = (tmp_path / name / "config.yaml").exists()
            result = train(config(name), resume=started)
            assert differences(checkpoint(whole, 4), checkpoint(result.run, 4)) == [], f"request {k}"
            assert records(result.run) == records(whole), f"request {k}"
            assert torch.equal(
                result.model.encoder[0].weight, train(config("whole"), resume=True).model.encoder[0].weight
            )
