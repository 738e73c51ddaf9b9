"""The tokenizer that comes with the package."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from driftvq.cli import main
from driftvq.data.images import read_image, to_float, to_uint8
from driftvq.metrics import psnr
from driftvq.models import VQVAE
from driftvq.models.hub import find_model
from driftvq.models.pretrained import CARD, CONFIG, WEIGHTS
from driftvq.names import STARTER

ROOT = Path(__file__).parents[2]
FILES = {CARD, CONFIG, WEIGHTS}


def test_it_is_small_and_holds_nothing_that_could_be_executed():
    folder = find_model(STARTER)
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / WEIGHTS).stat().st_size < 3_000_000


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(find_model(STARTER), tmp_path / STARTER)
    assert find_model(STARTER) == Path(STARTER)


def test_the_card_says_what_was_measured():
    """The PSNR of a photograph that it has never seen is as the card says, and all of that is acceptable."""
    card = (find_model(STARTER) / CARD).read_text(encoding="utf-8")
    for part in ("driftvq train --codebook-size", "| seed | 0 |", "## Limits", "## Licence", f'"{STARTER}"'):
        assert part in card
    said = {name: float(value) for name, value in re.findall(r"^\| (.+?) \| ([\d.]+) dB \|$", card, re.MULTILINE)}
    assert len(said) == 11
    assert min(said.values()) > 22
    matplotlib = pytest.importorskip("matplotlib")
    photo = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    original = torch.from_numpy(read_image(photo)).permute(2, 0, 1)[None]
    with torch.no_grad():
        rebuilt = to_uint8(VQVAE.from_pretrained(STARTER).reconstruct(to_float(original)))
    assert psnr(original, rebuilt, data_range=255).item() == pytest.approx(
        said["grace_hopper.jpg of matplotlib"], abs=0.02
    )


def test_every_command_takes_it_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    from driftvq.data.images import write_image

    write_image(tmp_path / "photos" / "a.png", image)
    assert main(["encode", STARTER, "photos", "-o", "tokens"]) == 0
    assert main(["decode", STARTER, "tokens", "-o", "out"]) == 0
    assert main(["reconstruct", "photos/a.png", "--alone"]) == 0
    assert np.array_equal(read_image("out/a.png"), read_image("a-reconstructed.png"))
    assert main(["evaluate", STARTER, "--data", "photos", "--size", "40", "--metrics", "psnr"]) == 0
    assert main(["inspect", STARTER]) == 0
    assert "4,096" in capsys.readouterr().out


@pytest.mark.slow
def test_the_wheel_contains_it(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"driftvq/models/{STARTER}/{name}" for name in FILES} <= set(names)
