import json
import os
import re
import subprocess
import sys

import pytest

from driftvq.cli import main
from driftvq.machine import pick_accelerator
from tests.training.runs import arguments, make_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "images")


def test_trains_and_says_what_to_do_next(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments(images, out, steps=2)) == 0
    said = capsys.readouterr()
    assert "finished 2 steps: validation PSNR" in said.out
    assert f"driftvq evaluate {out}" in said.out
    assert f"driftvq inspect {out}" in said.out
    first = said.err.splitlines()[0]
    for word in (str(images), "small network", "parameters", "ns_vq, K = 32", "cpu, ", "2 steps", str(out)):
        assert word in first
    assert "warn" not in said.err.lower()


def test_parameters_are_counted_alike_while_training_in_the_card_and_by_inspect(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments(images, out, steps=1)) == 0  # NS-VQ, whose codes no optimizer trains
    (trained,) = re.findall(r"([\d,]+) parameters", capsys.readouterr().err)
    assert main(["inspect", str(out)]) == 0
    (inspected,) = re.findall(r"parameters +([\d,]+)", capsys.readouterr().out)
    (card,) = re.findall(r"([\d,]+) parameters", (out / "model" / "README.md").read_text())
    assert trained == inspected == card


def test_beside_validation_images_of_their_own_all_images_are_trained_on(images, tmp_path, capsys):
    validation = make_images(tmp_path / "others", count=5)
    assert main(arguments(images, tmp_path / "run", steps=1, val_data=validation)) == 0
    assert f"24 images to train on, 5 of {validation} to validate on" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(images), "--metrics", "psnr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 24


def test_images_that_are_trained_on_are_not_held_out(images, tmp_path, capsys):
    (tmp_path / "link").symlink_to(images)
    assert main(arguments(images, tmp_path / "run", steps=1, val_data=tmp_path / "link")) == 2
    assert f"val_data must be other images than data, got {tmp_path / 'link'} twice" in capsys.readouterr().err
    (image, *_) = images.iterdir()
    assert main(arguments(image, tmp_path / "run", steps=1)) == 2
    assert "too few to hold one out; name images to validate on with --val-data" in capsys.readouterr().err


def test_a_run_can_be_repeated_from_its_own_config(images, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(arguments(images, first, steps=2)) == 0
    assert main(["train", "--config", str(first / "config.yaml"), "--out", str(second)]) == 0
    assert (first / "metrics.jsonl").read_text() == (second / "metrics.jsonl").read_text()
    assert (first / "config.yaml").read_text() == (second / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantizer", "nsvq"], "unknown quantizer 'nsvq'; known, nearest first: ns_vq"),
        (["--network", "papper"], "unknown network 'papper'; known, nearest first: paper"),
        (["--data", "/no/such/place"], "no such file or folder: /no/such/place"),
        (["--monitor", "pnsr"], "unknown monitor 'pnsr'"),
        (["--quantizer-options", "decai=3"], "decai"),
        (["--quantizer-options", "beta=1"], "'beta'; known, nearest first: commitment_weight,"),
        (["--config", "/no/such.yaml"], "no such config file: /no/such.yaml"),
        (["--resume"], "--resume needs the run to continue"),
        (["--resume", "/no/such/run"], "/no/such/run is not a run to resume"),
        pytest.param(
            ["--accelerator", "gpu"],
            "Lightning cannot work with accelerator='gpu', devices='auto', strategy='auto': "
            "No supported gpu backend found! Accelerators here: auto, cpu",
            marks=pytest.mark.skipif(pick_accelerator("gpu") != "cpu", reason="there is a GPU"),
        ),
        (["--steps", "0"], "steps must be a whole number of at least 1, got 0"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--steps", "1", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("driftvq train: error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_changed_setting_cannot_be_resumed(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments(images, out, steps=1)) == 0
    assert main(["train", "--resume", str(out), "--seed", "5"]) == 2
    assert "these differ: seed: 0 → 5" in capsys.readouterr().err
    assert main(arguments(images, out, steps=1)) == 2
    assert (
        f"is not empty; choose another --out; to continue it: driftvq train --resume {out}" in capsys.readouterr().err
    )
    assert main(["train", "--resume", str(out), "--out", str(tmp_path / "other")]) == 2


@pytest.mark.slow
def test_without_arguments_it_trains_on_embedded_photographs(tmp_path):
    command = [sys.executable, "-m", "driftvq.cli", "train", "--steps", "60"]
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert f"driftvq evaluate runs/{run.name}" in done.stdout
    assert done.stderr.startswith("embedded photographs: ")
