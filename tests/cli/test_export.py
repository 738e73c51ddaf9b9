import json
import subprocess
import sys

import pytest
import torch

from driftvq.cli import main
from driftvq.models import save_pretrained
from driftvq.models.export import FORMATS, Runner
from tests.models.cases import make_images, make_model


@pytest.mark.slow
def test_export_writes_files_that_agree(tmp_path):
    model = make_model("trans_vq")
    save_pretrained(model, tmp_path / "run" / "model")
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--format", "torch"]) == 0
    images = make_images(3, 12, 16)
    indices = torch.export.load(tmp_path / "out" / "encoder.pt2").module()(images)
    assert torch.equal(indices, model.encode(images))
    decoded = torch.export.load(tmp_path / "out" / "decoder.pt2").module()(indices)
    assert torch.allclose(decoded, model.decode(indices), atol=1e-6)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder, and a format that is written and loaded at once: its files are empty, the model itself runs."""
    model = make_model("vq")

    def write(traced, folder, metadata):
        (folder / "encoder.onnx").write_text("")
        (folder / "decoder.onnx").write_text("")

    monkeypatch.setitem(FORMATS, "onnx", (write, "onnx", lambda *paths: Runner(model.encode, model.decode)))
    monkeypatch.setattr("driftvq.models.export.trace", lambda model: None)
    save_pretrained(model, tmp_path / "run" / "model")
    return tmp_path / "run"


def test_export_checks_and_says_so(run, capsys):
    assert main(["export", str(run), "-o", str(run / "out")]) == 0
    said = capsys.readouterr().err
    assert f"wrote {run / 'out' / 'encoder.onnx'}, {run / 'out' / 'decoder.onnx'} and export.json" in said
    assert "checked: 243 indices as in torch, pixels within 0" in said
    assert sorted(path.name for path in (run / "out").iterdir()) == ["decoder.onnx", "encoder.onnx", "export.json"]


def test_no_check_does_not_check(run, capsys, monkeypatch):
    monkeypatch.setattr("driftvq.models.export.check_exported", lambda *args: pytest.fail("checked"))
    assert main(["export", str(run), "-o", str(run / "out"), "--no-check"]) == 0
    assert "checked" not in capsys.readouterr().err
    assert "check" not in json.loads((run / "out" / "export.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "-o", "x"], "error: no such folder: nowhere"),
        (["nowhere", "-o", "x", "--format", "onx"], "error: unknown export format 'onx'; known, nearest first: onnx"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_help_loads_nothing_heavy():
    for command in ("export", "push"):
        code = (
            "import sys\nfrom driftvq.cli import main\n"
            f"try: main(['{command}', '--help'])\n"
            "except SystemExit: pass\n"
            "print({'torch', 'numpy', 'huggingface_hub', 'onnx'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "set()"
        assert "MODEL" in done.stdout
