import json

import numpy as np
import pytest

from driftvq.cli import main
from driftvq.models import VQVAE
from driftvq.models.pretrained import model_hash
from tests.tokens.cases import load_png, make_model, save_photos


@pytest.fixture
def tokens(model, tmp_path):
    photos = save_photos(tmp_path / "photos", {"a.png": (16, 16), "b/c.jpg": (21, 18), "b/c.png": (21, 18)})
    assert main(["encode", model, str(photos), "-o", str(tmp_path / "tokens")]) == 0
    return tmp_path / "tokens"


def test_images_keep_their_folders_and_sizes(model, tokens, tmp_path, capsys):
    capsys.readouterr()
    assert main(["decode", model, str(tokens), "-o", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote 3 images to {tmp_path / 'out'}" in captured.err
    assert f"one image could not have its own name, listed in {tmp_path / 'out' / 'renamed.txt'}" in captured.err
    assert load_png(tmp_path / "out" / "a.png").shape == (16, 16, 3)
    assert load_png(tmp_path / "out" / "b" / "c.png").shape == (21, 18, 3)
    assert load_png(tmp_path / "out" / "b" / "c.png.png").shape == (21, 18, 3)


def test_tokens_of_another_model_are_refused_by_both_hashes(model, tokens, tmp_path, capsys):
    make_model(seed=1).save_pretrained(tmp_path / "other")
    assert main(["decode", str(tmp_path / "other"), str(tokens), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert model_hash(VQVAE.from_pretrained(model)) in error
    assert model_hash(VQVAE.from_pretrained(tmp_path / "other")) in error
    assert not list(tmp_path.glob("out*"))


def damage(folder, what):
    if what == "version":
        index = json.loads((folder / "index.json").read_text())
        (folder / "index.json").write_text(json.dumps({**index, "version": 99}))
    elif what == "truncated":
        data = (folder / "tokens.npy").read_bytes()
        (folder / "tokens.npy").write_bytes(data[:-1])
    else:
        array = np.load(folder / "tokens.npy")
        array[-1] = 64
        np.save(folder / "tokens.npy", array)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("version", "has tokens of format version 99; this driftvq reads up to 1: update it"),
        ("truncated", "tokens.npy is truncated"),
        ("range", "indices must lie between 0 and 63, got 64"),
    ],
)
def test_damaged_tokens_are_one_error_and_no_output(what, message, model, tokens, tmp_path, capsys):
    damage(tokens, what)
    capsys.readouterr()
    assert main(["decode", model, str(tokens), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("out*"))


def test_existing_images_are_not_touched(model, tokens, tmp_path, capsys):
    assert main(["decode", model, str(tokens), "-o", str(tmp_path / "photos")]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    assert load_png(tmp_path / "photos" / "a.png").shape == (16, 16, 3)


def test_a_folder_without_tokens_is_refused(model, tmp_path, capsys):
    assert main(["decode", model, str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "is not a token folder: no index.json in it" in capsys.readouterr().err
