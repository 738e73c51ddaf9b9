"""Two real processes must end with one model, which one process with the joined batch would have found."""

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from tests.training.runs import alive, arguments, differences, make_images, records, run_process, wait_for

SCRIPT = """
import sys

import torch

from driftvq.cli import main
from driftvq.training.loop import TrainingLoop

run_from = TrainingLoop.run_from


def run_and_save(loop, checkpoint):
    run_from(loop, checkpoint)
    torch.save(loop.model.state_dict(), loop.run / f"rank-{loop.fabric.global_rank}.pt")


if __name__ == "__main__":
    TrainingLoop.run_from = run_and_save
    sys.exit(main())
"""


def train_on_two(folder, words):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), *words, "--devices", "2", "--strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def shards(folder, images, count=2):
    folder.mkdir()
    paths = sorted(images.iterdir())
    for number in range(count):
        with tarfile.open(folder / f"images-{number}.tar", "w") as tar:
            for path in paths[number::count]:
                tar.add(path, path.name)
    return folder


MORE = {
    "shards": {},
    "trans_vq": {"quantizer": "trans_vq"},
    "at rest": {"settle": 0.5},
    "adversary": {"adversarial_weight": 0.5, "adversarial_start": 2},
}


@pytest.mark.parametrize("kind", ["folder", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_two_processes_end_with_one_model(kind, tmp_path):
    images = make_images(tmp_path / "images", 40)
    data = shards(tmp_path / "shards", images) if kind == "shards" else images
    out = tmp_path / "two"
    settings = {"batch_size": 2, "steps": 8, "val_every": 3, "val_images": 5, **MORE.get(kind, {})}
    train_on_two(tmp_path, arguments(data, out, **settings))
    first, second = (torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    assert differences(first, second) == []
    assert first["quantizer.start.finished"]
    assert [r["step"] for r in records(out) if "train/loss" in r] == list(range(1, 9)), "only the first process logs"

    if kind == "folder":  # the rows of a joined batch are those of the two halves
        alone = tmp_path / "one"
        process = run_process(arguments(data, alone, batch_size=4, steps=8, val_every=3, val_images=5))
        process.join(120)
        values = [[r["val/psnr"] for r in records(run) if "val/psnr" in r] for run in (out, alone)]
        assert values[0] == pytest.approx(values[1], abs=0.05)


@pytest.mark.parametrize(
    ("killed", "says"),
    [(1, "process 1 of 2 was killed by SIGKILL"), pytest.param(0, "process 0 of 2 is gone", marks=pytest.mark.slow)],
)
def test_a_killed_process_ends_the_other_with_a_line_that_names_it(killed, says, tmp_path):
    images, out = make_images(tmp_path / "images"), tmp_path / "run"
    words = arguments(images, out, steps=100_000, devices=2, strategy="ddp")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log.txt").open("w") as log:
        command = [sys.executable, "-m", "driftvq.cli", *words]
        first = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    wait_for(lambda: len(records(out)) > 5)
    (second,) = map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())
    os.kill((first.pid, second)[killed], signal.SIGKILL)
    wait_for(lambda: not alive(second) and first.poll() is not None)
    assert first.returncode == (-signal.SIGKILL, 1)[killed]
    text = (tmp_path / "log.txt").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("driftvq train: ")]
    assert line == (f"driftvq train: error: {says}; the others were stopped; to continue: driftvq train --resume {out}")
    assert "Traceback" not in text
