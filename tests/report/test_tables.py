import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from driftvq.records.codec import FORMAT
from driftvq.report import aggregate, load_comparison, results_table, write_results
from driftvq.report.tables import FORMATS


def test_markdown_marks_the_best_and_says_what_failed(sweep_source: Path) -> None:
    text = results_table(load_comparison(sweep_source))
    lines = text.splitlines()
    assert lines[0].startswith("| Method | codebook size K | KID, n = 256 ↓ | Usage ↑ | LPIPS ↓ | rFID, n = 256 ↓ |")
    assert len({line.count(" | ") for line in lines if line.startswith("|")}) == 1
    best = next(line for line in lines if line.startswith("| NS-VQ (driftvq default) | 8192 |"))
    assert re.search(r"\| \*\*0\.0\d+\*\* ± 0\.0\d+ \|", best)
    assert r"Failed: VQVAE2 (EMA), 8192, seed 2: RuntimeError: no space left on device \<script\>" in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_latex_is_escaped(plain_source: Path) -> None:
    text = results_table(load_comparison(plain_source), "latex")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrrrrrrrrrrrr}"
    assert body[-1] == r"\end{tabular}"
    rows = [line for line in body if line.endswith(r" \\")]
    assert len(rows) == 1 + 8
    assert all(len(re.findall(r"(?<!\\)&", row)) == 13 for row in rows)
    joined = "\n".join(body)
    assert r"\textless{}script\textgreater{}" in joined
    assert not re.search(r"(?<!\\)[%#_]", joined)
    assert r"\textbf{100.0\%} $\pm$ 0.0\%" in joined


def test_latex_specials() -> None:
    from driftvq.report.tables import _escape_latex

    assert _escape_latex(r"a_b & 50% #1 {x} \y ~ ^ $ ΔE") == (
        r"a\_b \& 50\% \#1 \{x\} \textbackslash{}y \textasciitilde{} \textasciicircum{} \$ $\Delta$E"
    )


def test_csv_and_json_hold_the_same_numbers(sweep_source: Path) -> None:
    comparison = load_comparison(sweep_source)
    records = list(csv.DictReader(io.StringIO(results_table(comparison, "csv"))))
    document = json.loads(results_table(comparison, "json"))
    assert len(records) == len(document["rows"]) == 22
    for record, row in zip(records, document["rows"], strict=True):
        assert record["method"] == row["method"]
        assert record["codebook_size"] == ("" if row["point"] is None else str(row["point"]))
        assert float(record["kid"]) == row["values"]["kid"]["mean"]
        assert float(record["kid_spread"]) == row["values"]["kid"]["spread"]
        kids = [seed["values"]["kid"] for seed in row["seeds"] if seed["status"] == "done"]
        assert np.mean(kids) == pytest.approx(row["values"]["kid"]["mean"])
    assert document["lead"] == "kid"
    assert document["answer"].startswith("NS-VQ (driftvq default)")
    assert [record["failed"] for record in records].count("1") == 1


def test_csv_text_is_no_formula(plain: Path) -> None:
    path = plain / "comparison.json"
    data = json.loads(path.read_text())
    data["methods"][0]["label"] = '=HYPERLINK("http://example.com")'
    path.write_text(json.dumps(data))
    record = next(csv.DictReader(io.StringIO(results_table(load_comparison(plain), "csv"))))
    assert record["label"].startswith("'=")


def test_unknown_format(plain_source: Path) -> None:
    with pytest.raises(ValueError, match="unknown format 'latx'; known, nearest first: latex"):
        results_table(load_comparison(plain_source), "latx")


def test_results_are_written_whole(plain: Path) -> None:
    paths = write_results(plain)
    assert [path.name for path in paths] == ["results.json", "results.csv"]
    assert json.loads(paths[0].read_text())["format"] == FORMAT
    assert not [path for path in plain.iterdir() if path.name.endswith(".tmp")]
    paths[0].write_text("old")
    write_results(plain)
    assert json.loads(paths[0].read_text())["rows"]


def test_numbers_that_are_not_finite_stay_out_of_json(plain: Path) -> None:
    path = plain / "comparison.json"
    data = json.loads(path.read_text())
    data["config"]["limit"] = float("inf")
    path.write_text(json.dumps(data))
    document = json.loads(results_table(load_comparison(plain), "json"), parse_constant=lambda word: pytest.fail(word))
    assert document["comparison"]["config"]["limit"] is None


@pytest.mark.parametrize("name", FORMATS)
def test_no_result_is_a_table_too(plain: Path, name: str) -> None:
    for path in plain.glob("cells/*/cell.json"):
        path.unlink()
    assert "vanilla" in results_table(aggregate(load_comparison(plain)), name)
