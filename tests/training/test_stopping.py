"""Ctrl-C, a full disk, a loss that is no number, images that cannot be read."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from driftvq.cli import main
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.objective import Objective
from driftvq.training.stopping import FiniteGuard
from tests.training.runs import alive, arguments, checkpoint, differences, make_images, records, run_process, wait_for


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_checkpoint_is_obeyed(number, images, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log.txt"
    words = arguments(images, out, steps=4, checkpoint_every=100)
    assert run(words, log, signals_in_checkpoint=(number,)) == 130
    assert log.read_text().splitlines()[-1].startswith("stopped after step 4, everything is saved; to continue: ")
    assert checkpoint(out, 4)["step"] == 4


@pytest.mark.parametrize("numbers", [(signal.SIGINT,) * 2, (signal.SIGINT,) * 3, (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_at_once_with_one_line(numbers, images, tmp_path):
    whole, out, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log.txt"
    assert run(arguments(images, whole)) == 0
    assert run(arguments(images, out), log, signals_in_checkpoint=numbers) == 130
    assert [line for line in log.read_text().splitlines() if "interrupted" in line] == ["driftvq train: interrupted"]
    assert "Traceback" not in log.read_text()
    assert run(["train", "--resume", str(out)]) == 0
    assert records(out) == records(whole)
    assert differences(checkpoint(whole, 12), checkpoint(out, 12)) == []


def test_ctrl_c_again_and_again_is_one_ending(images, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log.txt"
    process = run_process(arguments(images, out, steps=100_000, workers=1), log)
    wait_for(lambda: len(records(out)) > 3)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert workers
    while process.is_alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        process.join(0.02)
    assert process.exitcode == 130
    assert "Traceback" not in log.read_text()
    endings = [line for line in log.read_text().splitlines() if line.startswith(("stopped after", "driftvq train: "))]
    assert len(endings) == 1
    wait_for(lambda: not any(alive(worker) for worker in workers), 10)


def test_a_second_training_is_refused_and_the_first_goes_on(images, tmp_path):
    whole, out, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log.txt"
    settings = {"steps": 12, "checkpoint_every": 2}
    assert run(arguments(images, whole, **settings)) == 0
    first = run_process(arguments(images, out, **settings), signal_at=(6, signal.SIGSTOP))
    wait_for(lambda: len([r for r in records(out) if "train/loss" in r]) >= 5)
    try:
        for words in (["train", "--resume", str(out)], arguments(images, out, **settings)):
            assert run(words, log) == 2
        resumed, started = log.read_text().splitlines()
        assert f"another training, process {first.pid} on {socket.gethostname()}, is working in {out}" in resumed
        assert "is not empty" in started
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join(60)
    assert first.exitcode == 0
    assert records(out) == records(whole)
    assert differences(checkpoint(whole, 12), checkpoint(out, 12)) == []


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


def test_the_images_of_every_accumulated_batch_are_listed(images, tmp_path):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        loss = Objective.forward
        seen = []

        def diverge(self, *inputs):
            seen.append(inputs)
            output = loss(self, *inputs)
            return output._replace(loss=output.loss * float("nan")) if len(seen) == 3 else output

        patch.setattr(Objective, "forward", diverge)
        with pytest.raises(SystemExit):
            main(arguments(images, out, accumulate=3, probe_every=0))
    assert len(json.loads((out / "nan-step-1.json").read_text())["images"]) == 12


CLASSES = {"ns_vq": "NSVQ", "trans_vq": "TransVQ", "vq": "VQ"}


@pytest.mark.parametrize("quantizer", CLASSES)
def test_a_quantizer_that_meets_no_finite_number_names_the_images_too(quantizer, images, tmp_path, capsys):
    def diverge(*_):
        raise ValueError("latents must be finite, got nan")

    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"driftvq.quantizers.{CLASSES[quantizer]}.forward", diverge)
        with pytest.raises(SystemExit) as ended:
            main(arguments(images, out, quantizer=quantizer, probe_every=0))
    assert ended.value.code == 1
    (report,) = out.glob("nan-step-1.json")
    assert len(json.loads(report.read_text())["images"]) == 4
    assert "became NaN or infinite at step 1" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("quantizer", ["ns_vq", "trans_vq", "vq"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_steps_without_bounds_end_with_one_line_and_the_list_of_images(quantizer, precision, images, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log.txt"
    settings = {"learning_rate": 1e30, "steps": 4, "quantizer": quantizer, "precision": precision}
    assert run(arguments(images, out, **settings), log) == 1
    (path,) = out.glob("nan-step-*.json")
    line = log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()
    assert line.startswith("driftvq train: error: ")
    assert f"the images of that step are listed in {path}; try a smaller --learning-rate" in line
    assert json.loads(path.read_text())["images"]


def test_other_mistakes_in_a_step_are_not_called_infinite(tmp_path):
    guard = FiniteGuard(tmp_path, VQVAE(ModelConfig(codebook_size=8)))
    with pytest.raises(ValueError, match="wrong shape"), guard.at(1, ["a.png"]):
        raise ValueError("wrong shape")
    assert list(tmp_path.iterdir()) == []


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


def test_a_signal_to_the_whole_group_saves_too(images, tmp_path):
    """As timeout, systemd and batch systems send it: to the processes that read images as well."""
    out = tmp_path / "run"
    words = arguments(images, out, steps=100_000, workers=1, log_every=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "driftvq.cli", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: len(records(out)) > 2)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "everything is saved" in said.splitlines()[-1]
    assert list((out / "checkpoints").iterdir())
