import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from driftvq.data import eval_batches, open_source, to_float, to_uint8
from driftvq.files import read_records
from driftvq.records.runs import append_record, drop_records_after
from driftvq.training.config import TrainConfig
from driftvq.training.logs import RunLog, SkippedImages, pair_grid
from driftvq.training.run import train

SETTINGS = {
    "size": 16,
    "batch_size": 4,
    "codebook_size": 32,
    "code_dim": 8,
    "val_every": 2,
    "log_every": 1,
    "val_images": 5,
    "val_share": 0.2,
    "workers": 0,
    "accelerator": "cpu",
    "precision": "32-true",
}

IMAGES = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def run(pictures, tmp_path, one_thread):
    """Train a small model."""
    return lambda name, **changes: train(
        TrainConfig(**SETTINGS, data=str(pictures), out=str(tmp_path / name), **changes)
    )


def drift_lines(run):
    return [r for r in read_records(run / "metrics.jsonl") if "drift/latent_spread" in r]


def test_drift_is_read_before_the_first_step_and_every_so_often(run):
    lines = drift_lines(run("run", steps=7, probe_every=3).run)
    assert [line["step"] for line in lines] == [0, 3, 6]
    assert "drift/latents_moved" not in lines[0]
    assert lines[2]["drift/interval"] == 3
    assert lines[2]["drift/latents_moved"] > 0
    assert all(math.isfinite(value) for line in lines for value in line.values())


def test_measuring_changes_no_weight(run):
    often = run("often", steps=5, probe_every=1, tensorboard=False)
    never = run("never", steps=5, probe_every=0, tensorboard=False).model.state_dict()
    assert all(torch.equal(value, never[name]) for name, value in often.model.state_dict().items())


def test_tensorboard_has_scalars_histograms_and_pictures(run):
    folder = run("run", steps=4, probe_every=2).run
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "histograms": 0, "scalars": 0}).Reload()
    tags = events.Tags()
    assert {"drift/follow_unselected", "train/loss", "val/psnr"} <= set(tags["scalars"])
    usages = {tag for tag in tags["scalars"] if "usage" in tag}
    assert usages == {"usage/last_100_steps", "usage/validation_images"}
    logged = {r["step"]: r["val/usage"] for r in read_records(folder / "metrics.jsonl") if "val/usage" in r}
    assert {e.step: e.value for e in events.Scalars("usage/validation_images")} == pytest.approx(logged)
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert {"codes/selected_by_probe", "codes/age"} == set(tags["histograms"])
    assert [e.step for e in events.Images("reconstructions")] == [2, 4]
    latents = events.Histograms("codes/selected_by_probe")[-1].histogram_value
    assert latents.num == 32
    assert latents.sum % (4 * 4) == 0


def test_other_processes_than_the_first_write_nothing(tmp_path):
    log = RunLog(None)
    log.write(1, {"train/loss": 0.5})
    assert log.latest == {"train/loss": 0.5}
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_starts_again_forgets_all_that_was_logged(tmp_path):
    append_record(tmp_path / "metrics.jsonl", 0, {"drift/latent_spread": 1.0})
    RunLog(tmp_path, 0, tensorboard=False)
    assert read_records(tmp_path / "metrics.jsonl") == []


def test_records_are_valid_json_and_keep_what_is_finite(tmp_path):
    log = RunLog(tmp_path, tensorboard=False)
    log.write(7, {"a": math.nan, "b": torch.tensor(0.5), "c": -math.inf, "d": 3, "e": np.float32(0.25)})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert line.endswith("\n")
    assert json.loads(line) == {"step": 7, "a": None, "b": 0.5, "c": None, "d": 3, "e": 0.25}


@pytest.mark.parametrize("torn", ["", '{"step": 9, "a"', "17\n", "\x00\x00\x00", '{"a": 1}\n'])
def test_records_after_a_step_are_dropped_and_so_is_a_torn_line(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 2, 3, 4):
        append_record(path, step, {"a": step / 3})
    with path.open("a") as file:
        file.write(torn)
    assert [r["step"] for r in read_records(path)] == [1, 2, 2, 3, 4]
    drop_records_after(path, 2)
    assert [r["step"] for r in read_records(path)] == [1, 2, 2]
    assert read_records(path)[1]["a"] == 2 / 3
    append_record(path, 3, {})
    assert len(path.read_text().splitlines()) == 4
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_rewrite_leaves_the_records_as_they_were(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_record(path, 5, {"a": 1})
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        drop_records_after(path, 1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_records_is_no_error(tmp_path):
    assert read_records(tmp_path / "none.jsonl") == []
    drop_records_after(tmp_path / "none.jsonl", 0)
    assert not (tmp_path / "none.jsonl").exists()


def test_samples_are_originals_over_what_the_model_gives_back(run, pictures):
    result = run("run", steps=3, tensorboard=False)
    files = sorted(path.name for path in (result.run / "samples").iterdir())
    assert files == ["step-00000002.png", "step-00000003.png"]
    picture = np.asarray(Image.open(result.run / "samples" / files[-1]))
    source = open_source(str(pictures), "val", val_share=SETTINGS["val_share"], seed=0)
    with eval_batches(source, size=16, batch_size=16, limit=16) as batches:
        images = next(iter(batches)).images
    expected = to_uint8(result.model.reconstruct(to_float(images)))
    for number in range(min(len(images), 8)):
        columns = slice(16 * number, 16 * number + 16)
        assert np.array_equal(picture[:16, columns], images[number].permute(1, 2, 0))
        assert np.array_equal(picture[16:32, columns], expected[number].permute(1, 2, 0))


def test_a_grid_pads_its_last_row():
    originals, rebuilt = IMAGES, 255 - IMAGES
    grid = pair_grid(originals, rebuilt, columns=3)
    assert grid.shape == (64, 48, 3)
    assert np.array_equal(grid[32:48, 16:32], originals[4].permute(1, 2, 0))
    assert np.array_equal(grid[48:, 16:32], rebuilt[4].permute(1, 2, 0))
    assert (grid[32:, 32:] == 255).all()


def test_each_image_is_listed_once_also_after_a_restart(tmp_path):
    skipped = SkippedImages(tmp_path)
    skipped.add([])
    assert not skipped.path.exists()
    skipped.add([("a.png", "empty"), ("odd\tname\n.png", "two\nlines")])
    skipped.add([("a.png", "empty")])
    again = SkippedImages(tmp_path)
    again.add([("a.png", "empty"), ("b.png", "truncated")])
    assert skipped.path.read_text() == "a.png\tempty\nodd name .png\ttwo lines\nb.png\ttruncated\n"
    assert skipped.count() == again.count() == 3
