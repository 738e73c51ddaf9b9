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
from tests.faulty_disk import FaultyDisk
from tests.training.runs import checkpoint, differences, records
from tests.training.test_checkpoints import FABRIC
from tests.training.test_run import SMALL


def requests(work, writes=True):
    """How many requests a piece of work makes; ``for k in …`` fails each of them."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(patch, writes=writes)
        work()
        return disk.requests


def fail_at(k, work, writes=True):
    with pytest.MonkeyPatch.context() as patch:
        FaultyDisk(patch, k, writes)
        with pytest.raises(OSError, match="No space left on device") as caught:
            work()
    return caught.value


def test_a_checkpoint_is_there_or_not_and_the_one_before_stays(tmp_path):
    def save(run, step):
        save_checkpoint(FABRIC, run, step, {"model": nn.Linear(3, 2), "step": step, "random": [1, 2]})

    save(tmp_path / "count", 1)
    count = requests(lambda: save(tmp_path / "count", 2))
    assert count > 20
    for k in range(1, count + 1):
        run = tmp_path / str(k)
        save(run, 1)
        (path,) = list_checkpoints(run / "checkpoints")
        before = path.read_bytes()
        fail_at(k, lambda run=run: save(run, 2))
        assert path.read_bytes() == before
        assert all(read_checkpoint(found) for found in list_checkpoints(run / "checkpoints")), (
            "half of one has the name"
        )
        assert len(list(path.parent.iterdir())) == len(list_checkpoints(path.parent)), "something was left behind"
        save(run, 2)
        assert find_checkpoint(run, pytest.fail)[1] == 2


def test_the_files_of_a_run_are_old_or_new(tmp_path):
    write_run_files(tmp_path / "count", TrainConfig(seed=1), 10)
    count = requests(lambda: write_run_files(tmp_path / "count", TrainConfig(seed=2), 10))
    assert count >= 8
    for k in range(1, count + 1):
        run = tmp_path / str(k)
        write_run_files(run, TrainConfig(seed=1), 10)
        fail_at(k, lambda run=run: write_run_files(run, TrainConfig(seed=2), 10))
        assert make_config(read_settings(run / "config.yaml")).seed in (1, 2)
        assert json.loads((run / "environment.json").read_text())["packages"]
        assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "environment.json"]


def test_the_log_and_the_list_of_skipped_images_keep_what_they_had(tmp_path):
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
    count = requests(lambda: work(run))
    assert count >= 6
    for k in range(1, count + 1):
        run = fresh(str(k))
        fail_at(k, lambda run=run: work(run))
        assert read_records(run / "metrics.jsonl")[0] == {"step": 2, "train/loss": 2.0}
        assert (run / "skipped.txt").read_text().startswith("a.png\tempty\n")
        work(run)
        assert [record["step"] for record in read_records(run / "metrics.jsonl")] == [2]
        assert SkippedImages(run).count() == 2


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_whose_disk_was_full_goes_on_to_the_same_end(stride, pictures, tmp_path, one_thread):
    def config(name):
        settings = {**SMALL, "steps": 4, "checkpoint_every": 2, "probe_every": 2}
        return TrainConfig(**settings, data=str(pictures), out=str(tmp_path / name))

    whole = tmp_path / "whole"
    count = requests(lambda: train(config("whole")), writes=False)
    assert count > 40
    for k in range(1, count + 1, stride):
        name = f"at-{k}"
        error = fail_at(k, lambda name=name: train(config(name)), writes=False)
        assert "\n" not in str(error)
        started = (tmp_path / name / "config.yaml").exists()
        result = train(config(name), resume=started)
        assert differences(checkpoint(whole, 4), checkpoint(result.run, 4)) == [], f"request {k}"
        assert records(result.run) == records(whole), f"request {k}"
        assert torch.equal(result.model.encoder[0].weight, train(config("whole"), resume=True).model.encoder[0].weight)
