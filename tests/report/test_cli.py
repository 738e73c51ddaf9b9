import argparse
import json
from pathlib import Path

import pytest

from driftvq.cli import report


def run(*argv: str) -> None:
    parser = argparse.ArgumentParser()
    report.configure(parser)
    report.run(parser.parse_args(argv))


def test_page_and_results_are_rebuilt(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(plain))
    assert capsys.readouterr().out.strip() == str(plain / "report.html")
    assert (plain / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((plain / "results.json").read_text())["rows"]
    assert (plain / "results.csv").is_file()


def test_several_are_put_side_by_side(
    plain: Path, sweep_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(str(plain), str(sweep_source), "-o", str(tmp_path / "both.html"))
    assert "2 comparisons side by side" in (tmp_path / "both.html").read_text()
    monkeypatch.chdir(tmp_path)
    run(str(plain), str(sweep_source))
    assert (tmp_path / "report.html").is_file()


def test_the_table_is_printed(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(plain), "--format", "latex")
    assert r"\begin{tabular}" in capsys.readouterr().out
    assert not (plain / "report.html").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["{plain}", "--format", "md"], "unknown format 'md'; known, nearest first: markdown"),
        (["{plain}", "{plain}", "--format", "csv"], "the table of one folder"),
        (["{plain}/cells"], "has no comparison.json"),
        (["{plain}/nowhere"], "there is no folder"),
    ],
)
def test_mistakes_are_named(plain: Path, argv: list[str], words: str) -> None:
    with pytest.raises((ValueError, OSError)) as error:
        run(*(part.format(plain=plain) for part in argv))
    assert words in str(error.value)
