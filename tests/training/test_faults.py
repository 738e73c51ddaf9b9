"""Ctrl-C, a full disk, a loss that is no number, images that cannot be read."""

import json
import signal

import pytest
import torch

from tests.training.runs import arguments, checkpoint, differences, make_images, records, run_process


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "images")


def run(words, log=None, **options):
    process = run_process(words, log, **options)
    process.join(120)
    return process.exitcode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(number, images, tmp_path):
    whole, stopped, log = tmp_path / "whole", tmp_path / "stopped", tmp_path / "log.txt"
    settings = {"steps": 30, "val_every": 7, "checkpoint_every": 1000}
    assert run(arguments(images, whole, **settings)) == 0
    process = run_process(arguments(images, stopped, **settings), log, signal_at=(9, number))
    process.join(120)
    assert process.exitcode == 130
    (saved,) = (stopped / "checkpoints").iterdir()
    assert saved.name == "step-00000009.ckpt"
    assert "stopped after step 9" in log.read_text()
    assert f"driftvq train --resume {stopped}" in log.read_text()
    assert run(["train", "--resume", str(stopped)]) == 0
    assert records(stopped) == records(whole)
    assert differences(checkpoint(whole, 30), checkpoint(stopped, 30)) == []


def test_a_loss_that_is_no_number_stops_and_names_the_images(images, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log.txt"
    assert run(arguments(images, out, learning_rate=1e30, checkpoint_every=1), log) == 1
    (report,) = out.glob("nan-step-*.json")
    found = json.loads(report.read_text())
    assert found["step"] == int(report.stem.removeprefix("nan-step-"))
    assert len(found["images"]) == 4
    assert all((images / name).exists() for name in found["images"])
    assert f"at step {found['step']}" in log.read_text()
    assert str(report) in log.read_text()
    for path in (out / "checkpoints").iterdir():
        weights = torch.load(path, weights_only=True)["model"]
        assert all(w.isfinite().all() for w in weights.values() if w.is_floating_point())


def test_a_full_disk_leaves_the_checkpoint_before(images, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log.txt"
    assert run(arguments(images, out, steps=4)) == 0
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}
    size = len(before["step-00000004.ckpt"])
    assert run(["train", "--resume", str(out), "--steps", "8"], log, largest_file=size // 2) == 2
    message = f"cannot write checkpoint {out / 'checkpoints' / 'step-00000008.ckpt'}: File too large; checkpoints"
    assert message in log.read_text().replace("model.safetensors", "")
    after = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}
    assert after == before
    assert run(["train", "--resume", str(out), "--steps", "8"]) == 0


def test_unreadable_images_are_listed_and_counted(images, tmp_path):
    folder = make_images(tmp_path / "some", 12)
    (folder / "empty.png").touch()
    (folder / "words.jpg").write_text("not an image")
    out, log = tmp_path / "run", tmp_path / "log.txt"
    assert run(arguments(folder, out), log) == 0
    lines = (out / "skipped.txt").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in lines) == ["empty.png", "words.jpg"]
    assert all(line.split("\t")[1] for line in lines)
    assert "skipped 2 unreadable images" in log.read_text()
    assert run(arguments(folder, tmp_path / "strict", strict=True), log) == 2
    assert "cannot read" in log.read_text()
