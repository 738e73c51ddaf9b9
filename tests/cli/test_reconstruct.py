import os
import re

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio

from driftvq.cli import main
from tests.tokens.cases import load_png, make_model, pixels, save_photos


@pytest.fixture
def here(tmp_path, monkeypatch):
    save_photos(tmp_path / "photos", {"a.png": (16, 16), "b.png": (21, 18)})
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_the_reconstruction_is_beside_nothing_of_the_user(model, here, capsys):
    assert main(["reconstruct", model, "../photos/b.png", "--alone"]) == 0
    image = load_png(here / "b-reconstructed.png")
    wanted = peak_signal_noise_ratio(pixels(21, 18, seed=1), image)
    assert capsys.readouterr().out == f"../photos/b.png  18×21  PSNR {wanted:.2f} dB  b-reconstructed.png\n"
    assert [path.name for path in here.iterdir()] == ["b-reconstructed.png"]
    assert {path.name for path in (here / ".." / "photos").iterdir()} == {"a.png", "b.png"}


def test_several_images_have_a_mean(model, here, capsys):
    assert main(["reconstruct", model, "../photos/a.png", "../photos/b.png", "-o", "out/deep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second, mean = (float(re.search(r"PSNR ([\d.]+) dB", line)[1]) for line in lines)
    assert mean == pytest.approx((first + second) / 2, abs=0.011)
    assert lines[2].startswith("mean of 2 images")
    assert {path.name for path in (here / "out" / "deep").iterdir()} == {"a-reconstructed.png", "b-reconstructed.png"}


def test_side_by_side_shows_the_original_first(model, here):
    assert main(["reconstruct", model, "../photos/b.png", "-o", "pair.png"]) == 0
    assert main(["reconstruct", model, "../photos/b.png", "-o", "alone.png", "--alone"]) == 0
    pair = load_png(here / "pair.png")
    assert pair.shape == (21, 18 + 4 + 18, 3)
    assert np.array_equal(pair[:, :18], pixels(21, 18, seed=1))
    assert np.all(pair[:, 18:22] == 255)
    assert np.array_equal(pair[:, 22:], load_png(here / "alone.png"))


def test_size_is_that_of_the_centre_square(model, here):
    assert main(["reconstruct", model, "../photos/b.png", "--size", "12", "-o", "b.png", "--alone"]) == 0
    assert load_png(here / "b.png").shape == (12, 12, 3)


def test_without_a_model_the_one_that_comes_with_driftvq(here, capsys):
    assert main(["reconstruct", "../photos/a.png", "--alone"]) == 0
    assert main(["reconstruct", "../photos/a.png", "../photos/b.png", "-o", "out", "--alone"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("model: starter") == 2
    assert main(["reconstruct", "starter", "../photos/a.png", "-o", "named.png", "--alone"]) == 0
    images = [load_png(here / name) for name in ("a-reconstructed.png", "out/a-reconstructed.png", "named.png")]
    assert all(np.array_equal(image, images[0]) for image in images)
    assert (here / "out" / "b-reconstructed.png").exists()
    assert main(["reconstruct", "none.png"]) == 2
    assert "no such image: none.png" in capsys.readouterr().err


def test_a_model_alone_is_told_from_a_folder_of_images(model, here, capsys):
    assert main(["reconstruct", model]) == 2
    assert f"{model} is a model; name the images behind it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["../photos/a.png"], "a-reconstructed.png exists and is not overwritten"),
        (["../photos/a.png", "-o", "a-reconstructed.png"], "a-reconstructed.png exists and is not overwritten"),
        (["../photos/b.png", "../photos/none.png"], "no such image: ../photos/none.png"),
        (["../photos"], "../photos is a folder; name its images"),
        (["../photos/a.png", "../photos/b.png", "-o", "x.png"], "2 images need a folder as output, got the file x.png"),
        (["../photos/b.png", "-o", "x.jpg"], "the output must be a folder or a .png file, got x.jpg"),
        (["../photos/b.png", "../photos/b.png"], "would both become b-reconstructed.png"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(arguments, message, model, here, capsys):
    (here / "a-reconstructed.png").write_text("mine")
    assert main(["reconstruct", model, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.read_text() for path in here.iterdir()] == ["mine"]


def test_an_unreadable_image_does_not_stop_the_others(model, here, capsys):
    (here / "bad.jpg").write_text("no image")
    (here / "tiny.png").write_bytes(b"")
    save_photos(here, {"tiny.png": (2, 30)})
    assert main(["reconstruct", model, "bad.jpg", "tiny.png", "../photos/a.png", "-o", "out"]) == 2
    captured = capsys.readouterr()
    assert "cannot read bad.jpg: not an image" in captured.err
    assert "cannot read tiny.png: 2×30 pixels, the model needs 4×4" in captured.err
    assert "error: 2 of 3 images could not be read, the first: bad.jpg" in captured.err
    assert [path.name for path in (here / "out").iterdir()] == ["a-reconstructed.png"]


def test_a_plain_autoencoder_reconstructs_too(here, tmp_path):
    make_model(quantizer="none").save_pretrained(tmp_path / "plain")
    assert main(["reconstruct", str(tmp_path / "plain"), "../photos/a.png", "--alone"]) == 0
    assert load_png(here / "a-reconstructed.png").shape == (16, 16, 3)


def test_a_file_whose_name_is_no_text(model, here, capsys):
    name = os.fsdecode(b"bad\xff.png")
    (here.parent / "photos" / "a.png").rename(here / name)
    assert main(["reconstruct", model, name, "-o", "out"]) == 0
    assert "bad" in capsys.readouterr().out
