"""The documentation: its code runs, its commands are understood, its site builds, its notebook too."""

import argparse
import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from driftvq.cli import main as driftvq
from driftvq.cli import make_parser
from driftvq.experiments.design import Request
from driftvq.experiments.plan import make_plan
from driftvq.quantizers import QUANTIZERS, make_quantizer
from driftvq.training import TrainConfig, train
from driftvq.training.settings import read_settings
from tests.pages import PAGES, ROOT, Block, blocks, name, run

LANGUAGES = {"python", "sh", "text", "yaml"}
ALL = [block for page in PAGES for block in blocks(page)]


def of(language: str) -> Any:
    return pytest.mark.parametrize("block", [block for block in ALL if block.language == language], ids=str)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages take for granted: a run, photographs, their tokens, an exported model."""
    folder = tmp_path_factory.mktemp("desk")
    quick = {"steps": 2, "batch_size": 2, "size": 16, "codebook_size": 16, "val_images": 8, "precision": "32-true"}
    train(TrainConfig(**quick, out=str(folder / "runs/x")), say=lambda _: None)
    (folder / "photos").mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    words = [str(folder / "runs/x"), str(folder / "photos"), "-o", str(folder / "tokens")]
    assert driftvq(["encode", *words]) == 0
    assert driftvq(["export", words[0], "-o", str(folder / "exported"), "--no-check"]) == 0
    return folder


@pytest.fixture
def desk(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy to work in; afterwards no name is registered that was not before."""
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "desk"))
    before = dict(QUANTIZERS)
    torch.manual_seed(0)
    yield
    for word in QUANTIZERS.keys() - before.keys():
        del QUANTIZERS[word]


def test_every_block_says_what_it_is() -> None:
    assert [f"{block}: {block.language!r}" for block in ALL if block.language not in LANGUAGES] == []
    for page in PAGES:  # no fence, and no mark, that the search for blocks overlooks
        text = page.read_text(encoding="utf-8")
        assert 2 * len(blocks(page)) == len(re.findall(r"^ *```", text, re.MULTILINE)), name(page)
        marked = [block for block in blocks(page) if block.not_run is not None]
        assert len(marked) == len(re.findall(r"^ *<!-- not run", text, re.MULTILINE)), name(page)


ELSEWHERE = {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/interop.md"}
"""Pages whose code is run by a test that asks for more than that it runs."""


@pytest.mark.parametrize("page", sorted({b.page for b in ALL if b.language == "python"} - ELSEWHERE), ids=name)
@pytest.mark.usefixtures("desk")
def test_the_code_of_a_page_runs(page: Path) -> None:
    run(page)


def test_the_readme_says_how_many_codes_are_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    run(ROOT / "README.md")
    assert re.search(r"\d+% of the codes in use", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("scale", "words"),
    [("smoke", "two steps each, {} cells"), ("laptop", "lists the {} cells")],
    ids=["smoke", "laptop"],
)
def test_the_page_on_table_3_counts_its_cells(scale: str, words: str) -> None:
    cells = make_plan(Request("table-64d", scale)).cells
    assert words.format(len(cells)) in (ROOT / "docs" / "table_3.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("desk")
def test_the_quantizer_of_the_guide_moves_every_code() -> None:
    run(ROOT / "CONTRIBUTING.md")
    vq = make_quantizer("my_vq", dim=2, codebook_size=8)
    codes = torch.arange(16.0).reshape(8, 2)
    vq.set_codebook_(codes)
    vq(codes[:3] + 0.1)
    torch.testing.assert_close(vq.codebook, codes + 0.1)


@of("yaml")
@pytest.mark.usefixtures("desk")
def test_settings_are_accepted(block: Block) -> None:
    Path("my.yaml").write_text(block.text)
    settings = read_settings(Path("my.yaml"))
    config = TrainConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def commands(text: str) -> list[list[str]]:
    """The words of each command of a shell block, without comments and what is set for the environment."""
    text = re.sub(r"(?:^|[ \t])#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="\n|;&")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("\n|;&"):
            found.append([])
        elif found[-1] or not re.fullmatch(r"[A-Z_]+=\S*", word):
            found[-1].append(word)
    return [words for words in found if words]


class UnderstoodError(Exception):
    """The arguments of a script were parsed."""


def understand(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a command can be typed as it stands, short of running it."""
    program, *rest = words
    if program == "driftvq":
        make_parser(rest[:1]).parse_args(rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif program == "python" and rest[0] == "-c":
        ast.parse(rest[1])
    elif program == "python" and rest[0].endswith(".py"):
        understand_script(ROOT / rest[0], rest[1:], monkeypatch)
    else:
        assert words[:2] in (["pip", "install"], ["python", "-m"]), f"what is {program!r}?"


def understand_script(path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> None:
        parse(parser, *args, **options)
        raise UnderstoodError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    with pytest.raises(UnderstoodError):
        runpy.run_path(str(path), run_name="__main__")


def test_commands_are_found_in_a_shell_block() -> None:
    text = 'A=1 driftvq train \\\n  --steps 3  # why\n# no\npython -c "a = 1\nb = 2" | make results; make docs\n'
    assert commands(text) == [
        ["driftvq", "train", "--steps", "3"],
        ["python", "-c", "a = 1\nb = 2"],
        ["make", "results"],
        ["make", "docs"],
    ]


@of("sh")
def test_the_commands_of_a_block_are_understood(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands(block.text)
    assert found
    for words in found:
        with monkeypatch.context() as patch:
            understand(words, patch)


INLINE = re.compile(r"`(driftvq [a-z][^`]*|python benchmarks/[^`]*|make [a-z]+)`")


@pytest.mark.parametrize("page", [page for page in PAGES if INLINE.search(page.read_text(encoding="utf-8"))], ids=name)
def test_commands_within_a_text_are_understood(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text may speak of the beginning of one, or of its help."""
    for text in dict.fromkeys(INLINE.findall(page.read_text(encoding="utf-8"))):
        for words in commands(text.partition("…")[0]):
            code: object = 0
            try:
                with monkeypatch.context() as patch:
                    understand(words, patch)
            except SystemExit as end:
                code = end.code
            said = capsys.readouterr().err
            assert code == 0 or "required" in said or "expected" in said, f"{text}: {said}"


@pytest.fixture(scope="module")
def notebook() -> list[dict[str, Any]]:
    return json.loads((ROOT / "examples/quickstart.ipynb").read_text(encoding="utf-8"))["cells"]


def test_the_notebook_runs(notebook: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer steps than its reader has."""
    import matplotlib.pyplot as plt

    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.append(plt.gcf()))
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook:
        if cell["cell_type"] == "code":
            source = re.sub(r"(?m)^(STEPS = )\d+$", r"\g<1>2", "".join(cell["source"]))
            exec(compile(source, str(cell["id"]), "exec"), names)
    plt.close("all")
    assert len(drawn) == 1
    assert names["STEPS"] == 2
    assert torch.equal(names["model"].encode(names["images"]), names["indices"])


def test_the_notebook_shows_what_its_cells_gave(notebook: list[dict[str, Any]]) -> None:
    for cell in notebook:
        speaks = re.search(r"\bprint\(|\bshow\(\)", "".join(cell["source"])) is not None
        assert bool(cell.get("outputs")) == (cell["cell_type"] == "code" and speaks), cell["id"]
        assert not [output for output in cell.get("outputs", []) if output["output_type"] == "error"]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links and anchors lead somewhere, every page is in the navigation, and nothing comes from a network."""
    options = re.search(r"-m mkdocs build (.+) --site-dir", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split()
    assert options == ["--strict"]  # with --quiet mkdocs counts no warnings, and strict would forbid nothing
    words = [sys.executable, "-m", "mkdocs", "build", *options, "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "What you can rely on" in home  # the README
    assert "quantizers/ns_vq.html" in home
    reference = (tmp_path / "api/quantizers.html").read_text(encoding="utf-8")
    for kind in set(QUANTIZERS.values()):
        assert f'id="driftvq.quantizers.{kind.__name__}"' in reference
    assert "MultiScaleVQ(dim=32" in re.sub("<[^>]+>", "", reference)
    assert "<blockquote>" not in reference  # which Markdown makes of >>>
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(http[^"]*)"', page.read_text()
        )
        assert fetched == [], page
