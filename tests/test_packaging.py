"""What is shipped: versions that agree, and a wheel that works by itself."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from PIL import Image

import driftvq

ROOT = Path(__file__).parents[1]


def run(*words, cwd):
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == driftvq.__version__ == citation["version"] == released[0]


@pytest.mark.parametrize("workflow", ["test", "publish"])
def test_workflows_call_targets_that_there_are(workflow):
    (job,) = yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text())["jobs"].values()
    targets = [target for step in job["steps"] for target in re.findall(r"^make (\S+)", step.get("run", ""))]
    assert targets == {"test": ["test"], "publish": ["dist"]}[workflow]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    dist = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT, cwd=tmp_path)
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source, cwd=tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)):
        (tmp_path / "example.py").write_text(snippet)
        said = run(python, "-I", "example.py", cwd=tmp_path)
        assert number or "of the codes in use" in said
    command = tmp_path / "empty" / "bin" / "driftvq"
    assert run(command, "--version", cwd=tmp_path) == f"driftvq {driftvq.__version__}\n"
    # The first commands that a reader types, with the extras that the README names.
    extras = re.search(r'pip install "\.(\[.+?\])"', (ROOT / "README.md").read_text())[1]
    options = ("--quiet", "--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *options, f"{wheel}{extras}", cwd=tmp_path)
    Image.effect_noise((70, 50), 60).convert("RGB").save(tmp_path / "photo.jpg")
    assert "70×50" in run(command, "reconstruct", "photo.jpg", cwd=tmp_path)
    assert Image.open(tmp_path / "photo-reconstructed.png").size == (2 * 70 + 4, 50)
    assert "table-3d" in run(command, "reproduce", "--list", cwd=tmp_path)
    run(command, "toys", "--demo", "translation", "--method", "vanilla", "ns_vq", cwd=tmp_path)
    assert Image.open(tmp_path / "toys" / "translation.gif").n_frames > 10
