"""The examples run, in miniature."""

import runpy
import sys
import wave
from pathlib import Path

import pytest


def test_the_audio_codec_trains_and_writes_what_it_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    words = ["--steps", "2", "--batch", "2", "--quantizer", "ema_vq", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["audio_codec.py", *words])
    runpy.run_path(str(pytestconfig.rootpath / "examples/audio_codec.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert [line.split("|")[1:3] for line in said.splitlines() if line.startswith("| ")][1:] == [
        [" 1 ", " 1.6 "],
        [" 2 ", " 3.2 "],
        [" 3 ", " 4.8 "],
        [" 4 ", " 6.4 "],
    ]
    for name in ("before", "after_1_levels", "after_4_levels"):
        with wave.open(str(tmp_path / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getnframes()) == (8000, 16000)
