import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from driftvq.quantizers import QUANTIZERS, VQ, make_quantizer


def test_the_readme_example_runs(pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (pytestconfig.rootpath / "README.md").read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})
    assert "of the codes in use" in capsys.readouterr().out


def test_the_quantizer_of_the_guide_moves_every_code(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = re.findall(
        r" *```python\n(.*?)```", (pytestconfig.rootpath / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    monkeypatch.setitem(QUANTIZERS, "my_vq", VQ)  # forgets the name afterwards
    exec(compile(textwrap.dedent(snippet), "CONTRIBUTING.md", "exec"), {"__name__": "guide"})
    vq = make_quantizer("my_vq", dim=2, codebook_size=8)
    codes = torch.arange(16.0).reshape(8, 2)
    vq.set_codebook_(codes)
    vq(codes[:3] + 0.1)
    torch.testing.assert_close(vq.codebook, codes + 0.1)


def test_links_in_the_documentation_lead_somewhere(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    pages = [root / "README.md", root / "CONTRIBUTING.md", *Path(root / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http") and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)} -> {target}")
    assert not broken


def test_the_numbers_of_the_readme_are_those_of_the_results(pytestconfig: pytest.Config) -> None:
    text, results = (pytestconfig.rootpath / "README.md").read_text(), pytestconfig.rootpath / "docs" / "results"
    tables = {name: json.loads((results / f"{name}.json").read_text()) for name in ("benchmark-step", "collapse-now")}
    step = {row[0]: row for row in tables["benchmark-step"]["rows"]}
    assert f"| {step['NSVQ'][1]} ms | {step['peer EMA'][1]:,} ms |" in text
    assert f"| {step['NSVQ'][4]} MB | {step['peer EMA'][4]:,} MB |" in text
    now = tables["collapse-now"]
    (relocated,) = [
        row[now["columns"].index("relocated")] for row in now["rows"] if row[:5] == [1024, 64, 16, 1, "NSVQ"]
    ]
    assert f"relocated to latents, {relocated:,} times" in text
    page = (pytestconfig.rootpath / "docs" / "living_codebooks.md").read_text()  # made from the results
    worst = dict(re.findall(r"^\| ([^|]+) \| [\d.]+ \| ([\d.]+) \| K ", page, re.MULTILINE))
    told = f"| {worst['NSVQ']} dB | {worst['EMA']} dB; with replacement below 2: {worst['EMA + replacement below 2']}; "
    assert told + f"tuned to batch and K: {worst['EMA + replacement below half of N/K']} |" in text
