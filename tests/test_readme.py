import re
from pathlib import Path

import pytest


def test_the_readme_example_runs(pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (pytestconfig.rootpath / "README.md").read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})
    assert "of the codes in use" in capsys.readouterr().out


def test_links_in_the_documentation_lead_somewhere(pytestconfig: pytest.Config) -> None:
    root = pytestconfig.rootpath
    pages = [root / "README.md", root / "CONTRIBUTING.md", *Path(root / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http") and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)} -> {target}")
    assert not broken
