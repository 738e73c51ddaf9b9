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
