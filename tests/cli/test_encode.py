import subprocess
import sys

import numpy as np
import pytest
import torch

from driftvq.cli import main
from driftvq.models import VQVAE
from driftvq.tokens import open_tokens
from tests.tokens.cases import load_png, make_model, save_photos

SIZES = {
    "a.png": (16, 16),
    "b/c.png": (16, 16),
    "b/d.png": (21, 18),
    "b/e.jpg": (18, 21),
    "ü\nz.png": (16, 16),
    "x.webp": (40, 8),
}


@pytest.fixture
def photos(tmp_path):
    return save_photos(tmp_path / "photos", SIZES)


def run(*arguments):
    return main([str(argument) for argument in arguments])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("batch_size", [(), ("--batch-size", "4")], ids=["one by one", "in batches"])
@pytest.mark.parametrize("size", [(), ("--size", "16")], ids=["own sizes", "squares"])
def test_decode_of_encode_is_reconstruct_pixel_for_pixel(size, batch_size, model, photos, tmp_path, capsys):
    assert run("encode", model, photos, "-o", tmp_path / "tokens", *size, *batch_size) == 0
    assert run("decode", model, tmp_path / "tokens", "-o", tmp_path / "out") == 0
    names = list(open_tokens(tmp_path / "tokens").names())
    assert sorted(names) == sorted(SIZES)
    images = [photos / name for name in names]
    assert run("reconstruct", model, *images, "--alone", "-o", tmp_path / "direct", *size, *batch_size) == 0, (
        capsys.readouterr().err
    )
    decoded = sorted((tmp_path / "out").rglob("*.png"))
    assert len(decoded) == len(SIZES)
    for path in decoded:
        image = load_png(path)
        stem = "ü\nz" if path.stem == "ü_z" else path.stem
        assert np.array_equal(image, load_png(tmp_path / "direct" / f"{stem}-reconstructed.png"))
        assert image.std() > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="the default batch is that of a CPU")
def test_an_image_has_the_same_tokens_alone_and_among_others(model, photos, tmp_path):
    assert run("encode", model, photos, "-o", tmp_path / "all") == 0
    together = open_tokens(tmp_path / "all")
    for number, name in enumerate(together.names()):
        assert run("encode", model, photos / name, "-o", tmp_path / str(number)) == 0
        assert np.array_equal(open_tokens(tmp_path / str(number))[0], together[number])


def test_the_summary_counts_what_was_skipped(model, photos, tmp_path, capsys):
    (photos / "broken.png").write_bytes((photos / "a.png").read_bytes()[:60])
    (photos / "empty.jpg").touch()
    assert run("encode", model, photos, "-o", tmp_path / "tokens") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "wrote 6 images, 128 tokens (uint8)" in captured.err
    assert f"skipped 2 of 8 images, listed in {tmp_path / 'tokens' / 'skipped.txt'}" in captured.err
    lines = (tmp_path / "tokens" / "skipped.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ['"broken.png"', '"empty.jpg"']
    assert run("encode", model, photos, "-o", tmp_path / "strict", "--strict") == 2
    assert "cannot read broken.png" in capsys.readouterr().err


def interrupt_after(monkeypatch, calls):
    encode, left = VQVAE.encode, [calls]

    def stop(self, images):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return encode(self, images)

    monkeypatch.setattr(VQVAE, "encode", stop)


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(model, photos, tmp_path, capsys, monkeypatch):
    command = ("encode", model, photos, "-o", tmp_path / "tokens")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        assert run(*command) == 130
    assert "what is done is kept in" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()
    assert run(*command) == 2
    assert "holds 3 images of an interrupted run: --resume continues it" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)  # enough for the other half
        assert run(*command, "--resume") == 0
    assert run("encode", model, photos, "-o", tmp_path / "whole") == 0
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


def test_resuming_with_another_model_or_size_is_refused(model, photos, tmp_path, capsys, monkeypatch):
    make_model(seed=1).save_pretrained(tmp_path / "other")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        assert run("encode", model, photos, "-o", tmp_path / "tokens") == 130
    capsys.readouterr()
    assert run("encode", model, photos, "-o", tmp_path / "tokens", "--resume", "--size", "8") == 2
    assert "other settings: size was None, is 8" in capsys.readouterr().err
    assert run("encode", tmp_path / "other", photos, "-o", tmp_path / "tokens", "--resume") == 2
    assert "was begun with model" in capsys.readouterr().err


def test_complete_tokens_leave_nothing_to_resume(model, photos, tmp_path, capsys):
    command = ("encode", model, photos, "-o", tmp_path / "tokens")
    assert run(*command) == 0
    before = contents(tmp_path / "tokens")
    capsys.readouterr()
    assert run(*command, "--resume") == 0
    assert "tokens is complete, nothing is left to do" in capsys.readouterr().err
    assert run(*command, "--resume", "--size", "8") == 2
    assert "other settings: size was None, is 8" in capsys.readouterr().err
    (photos / "a.png").rename(photos / "other.png")
    assert run(*command, "--resume") == 2
    assert "the images are not those of" in capsys.readouterr().err
    assert contents(tmp_path / "tokens") == before


def test_existing_output_is_replaced_only_on_demand(model, photos, tmp_path, capsys):
    command = ("encode", model, photos, "-o", tmp_path / "tokens")
    assert run(*command, "--size", "8") == 0
    assert run(*command) == 2
    assert "tokens exists; --overwrite replaces it" in capsys.readouterr().err
    assert open_tokens(tmp_path / "tokens").index.size == (8, 8)
    assert run(*command, "--overwrite") == 0
    assert open_tokens(tmp_path / "tokens").index.size is None
    assert run("encode", model, photos, "-o", photos, "--overwrite") == 2
    assert "not a folder of tokens alone" in capsys.readouterr().err
    assert (photos / "a.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "no such file or folder"),
        (["photos", "--device", "gpu"], "unknown device 'gpu'"),
        (["photos", "--resume"], "nothing to resume"),
    ],
)
def test_mistakes_are_one_line_before_any_work(arguments, message, model, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("encode", model, *arguments, "-o", "tokens") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("command", ["encode", "decode", "reconstruct"])
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys; from driftvq.cli import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(int(any(name in sys.modules for name in ('torch', 'numpy', 'PIL', 'rich'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "examples:" in result.stdout
