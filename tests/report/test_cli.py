import json
from pathlib import Path

import pytest

from driftvq.cli import make_parser, report
from tests.report.synthetic import write_run


def run(*argv: str) -> None:
    report.run(make_parser(["report"]).parse_args(["report", *argv]))


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


def test_a_run_has_a_page_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    run(str(folder))
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    (row,) = json.loads((folder / "results.json").read_text())["rows"]
    assert row["codebook"] == "alive"
    assert {name: found["mean"] for name, found in row["values"].items()} == {
        **{"psnr": 21.5, "ssim": 0.5, "selected": 0.6, "usage": 0.97, "relocated": 12.0, "rfid": 80.0}
    }
    run(str(folder), "--format", "markdown")
    table = capsys.readouterr().out
    assert "| ns\\_vq | 21.50 | 97.0% |" in table
    assert table.count("n = 50") == 1  # over rFID, not over what the validation images select


@pytest.mark.parametrize("change", ["other images", "other model"])
def test_a_foreign_or_outdated_evaluation_is_no_result_of_a_run(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run")
    if change == "other model":
        (folder / "model" / "model.safetensors").write_bytes(b"more training")
    else:
        found = json.loads((folder / "evaluation.json").read_text())
        (folder / "evaluation.json").write_text(json.dumps(found | {"own_images": False}))
    run(str(folder), "--format", "markdown")
    table = capsys.readouterr().out
    assert "80.0" not in table
    assert "n = 50" not in table
    assert "The evaluation of 50 images of photos (val) is left out" in table


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "config.yaml").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"config\.yaml must hold `key: value` lines, got a list"):
        run(str(folder))


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
