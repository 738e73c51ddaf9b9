"""The tables and figures of the docs are what docs/results says."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.regret import by_condition, regrets

from driftvq.experiments.methods import METHODS as KNOWN_METHODS
from driftvq.records.comparisons import Sweep
from driftvq.report import load_comparison, write_report
from tests.report.synthetic import write_comparison

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    return results


@pytest.fixture
def tables(results: ModuleType) -> ModuleType:
    import tables

    return tables


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(ROOT / "docs", tmp_path / "docs"))


def test_the_docs_are_up_to_date(results: ModuleType) -> None:
    assert results.outdated() == [], "run `make results`"


def test_another_number_makes_its_pages_and_its_figure_out_of_date(results: ModuleType, docs: Path) -> None:
    path = docs / "results" / "collapse-grid.json"
    data = json.loads(path.read_text())
    row = next(row for row in data["rows"] if row[:3] == [1024, 64, "NSVQ"])
    row[data["columns"].index("psnr")] = [99.994, 0.5]
    path.write_text(json.dumps(data))
    found = results.outdated(docs)
    assert {page.name for page in found} == {"interop.md", "results.md", "collapse.png"}
    results.outdated(docs, write=True)
    assert results.outdated(docs) == []
    for name in ("interop.md", "results.md"):
        assert "| 99.99 ± 0.50 |" in (docs / name).read_text()


def test_a_table_typed_over_is_put_right(results: ModuleType, docs: Path) -> None:
    page = docs / "tracking.md"
    before = page.read_text()
    page.write_text(before.replace("| NSVQ | 1.", "| NSVQ | 0."))
    assert results.outdated(docs, write=True) == [page]
    assert page.read_text() == before


def test_a_comparison_that_is_kept_gives_the_same_table_and_a_page_anywhere(
    results: ModuleType, tmp_path: Path
) -> None:
    folder = write_comparison(tmp_path / "x", seeds=(0,), images=1, size=16, trouble=False)
    path = folder / "comparison.json"
    request = {"data": "/somewhere/faces.txt", "val_data": None}
    text = json.dumps(json.loads(path.read_text()) | {"request": request, "command": "x --data /somewhere/faces.txt"})
    path.write_text(text)
    results.keep(folder, tmp_path / "docs" / "results" / "kept")
    kept = tmp_path / "docs" / "results" / "kept"
    first, copied = (results.from_comparison(load_comparison(each)) for each in (folder, kept))
    assert copied == replace(first, command="x --data faces.txt")
    assert "/somewhere" not in "".join(path.read_text() for path in kept.rglob("*") if path.is_file())
    assert not list(kept.rglob("*.png"))
    assert results.read_all(tmp_path / "docs")["kept"].rows
    assert '"curves":[{' in write_report(kept).read_text()


def test_of_a_comparison_that_was_stopped_that_is_kept_which_it_has(results: ModuleType, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "x", sweep=(64, 1024), seeds=(0, 1), images=1, size=16, trouble=False)
    path = folder / "comparison.json"
    request = {"data": "faces.txt", "methods": ["vq", "sim_vq"], "codebook_size": [64, 1024], "seeds": 2}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"request": request}))
    for cell in folder.glob("cells/*/cell.json"):
        if not cell.parent.name.startswith("sim_vq--64--seed1"):
            cell.write_text(json.dumps(json.loads(cell.read_text()) | {"status": "waiting"}))
    results.keep(folder, tmp_path / "kept")
    found = load_comparison(tmp_path / "kept")
    assert [cell.folder.name for cell in found.cells] == ["sim_vq--64--seed1"]
    assert ([method.name for method in found.methods], found.seeds, found.sweep.values) == (["sim_vq"], (1,), (64,))
    assert "--methods sim_vq --first-seed 1 --codebook-size 64" in found.command


def test_runs_that_are_kept_together_are_one_comparison(results: ModuleType, tmp_path: Path) -> None:
    kept, runs = tmp_path / "kept", {}
    for name, sweep, seeds in (("a", (64, 1024), (0,)), ("b", (1024, 8192), (0, 1))):
        runs[name] = write_comparison(tmp_path / name, sweep=sweep, seeds=seeds, images=1, size=16, shift=len(runs))
        path = runs[name] / "comparison.json"
        request = {"data": "faces.txt", "methods": ["vq"], "codebook_size": sweep}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"request": request}))
        results.keep(runs[name], kept)
    found, a, b = (load_comparison(folder) for folder in (kept, *runs.values()))
    assert found.sweep.values == (64, 1024, 8192)
    assert found.seeds == (0, 1)
    assert "--codebook-size 64 1024 8192" in found.command
    assert "--seeds 2" in found.command
    assert found.title == a.title
    all_of, of_a, of_b = ({cell.place: cell.values for cell in run.cells if cell.values} for run in (found, a, b))
    assert all_of == of_a | of_b  # of two cells at one place, the newer one
    assert {cell.status for cell in found.cells} == {"done", "failed"}  # and none that is still to be made
    before = {path: path.read_bytes() for path in kept.rglob("*.json*")}
    results.keep(runs["b"], kept)
    assert {path: path.read_bytes() for path in kept.rglob("*.json*")} == before
    path = runs["b"] / "comparison.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"environment": {"cpu": "another"}}))
    with pytest.raises(ValueError, match=r"kept has environment .*, the run \{'cpu': 'another'\}; keep it in a folder"):
        results.keep(runs["b"], kept)
    assert {path: path.read_bytes() for path in kept.rglob("*.json*")} == before


def test_conditions_that_are_kept_together_are_those_of_both(results: ModuleType, tmp_path: Path) -> None:
    from study import both

    folder = write_comparison(tmp_path / "x", sweep=None, seeds=(0,), images=1, size=16)
    first, second = (
        replace(
            load_comparison(folder), sweep=Sweep("condition", names, "condition"),
            request={"recipe": "collapse-drift", "methods": ["vq"], "conditions": list(names)},
        )
        for names in (("K 64, batch 1", "K 64, batch 4"), ("K 64, batch 4", "K 64, batch 16"))
    )  # fmt: skip
    found = both(first, second)
    assert found.sweep is not None
    assert set(found.sweep.values) == {"K 64, batch 1", "K 64, batch 4", "K 64, batch 16"}
    assert "--conditions 'K 64, batch 1' 'K 64, batch 16' 'K 64, batch 4'" in found.command


def test_the_study_is_summed_up_from_its_cells(results: ModuleType) -> None:
    """Against the files themselves, read anew."""
    tables, places = results.read_all(), dict[str, dict[tuple[int, int], dict[int, tuple[dict[str, Any], Path]]]]()
    for path in sorted((ROOT / "docs" / "results").glob("study-table-*/cells/*/cell.json")):
        cell = json.loads(path.read_text())
        if cell["status"] == "done" and cell["codebook_size"]:
            seeds = places.setdefault(cell["method"], {}).setdefault((cell["codebook_size"], cell["code_dim"]), {})
            seeds[cell["seed"]] = cell, path.with_name("metrics.jsonl")
    by_place = {tuple(row[:3]): row for row in tables["study-cells"].rows if row[1]}
    assert len(by_place) == sum(map(len, places.values()))
    for place, seeds in places["sim_vq"].items():
        row = by_place["SimVQ", *place]
        for name in ("rfid", "psnr", "usage"):
            mean = sum(cell["values"][name] for cell, _ in seeds.values()) / len(seeds)
            found = row[tables["study-cells"].columns.index(name)]
            assert (found[0] if len(seeds) > 1 else found) == pytest.approx(mean, rel=1e-5)
        assert row[-1] == len(seeds)
    best = {row[0]: row[1:] for row in tables["study-best"].rows}
    assert len(best) == len(places)
    assert [row[3] for row in tables["study-best"].rows] == sorted(row[3] for row in tables["study-best"].rows)
    means = {
        place: sum(cell["values"]["rfid"] for cell, _ in seeds.values()) / len(seeds)
        for place, seeds in places["sim_vq"].items()
    }
    assert tuple(best["SimVQ"][:2]) == min(means, key=lambda place: means[place])
    assert best["SimVQ"][2] == pytest.approx(min(means.values()), rel=1e-5)
    cost = {tuple(row[1:4]): (row[0], *row[4:]) for row in tables["study-cost"].rows}
    single = [(place, *seeds[0]) for place, seeds in places["sim_vq"].items() if list(seeds) == [0]]
    assert single
    for place, cell, curve in single:
        words, level, seconds, steps, ms = cost[*place, "SimVQ"]
        assert words == f"K {place[0]}, D {place[1]}, {level:.2f} dB"
        lines = [json.loads(line) for line in curve.read_text().splitlines()]
        points = [(line["step"], line["val/psnr"]) for line in lines if "val/psnr" in line]
        assert ms == pytest.approx(cell["ms_per_step"], abs=0.051)
        if max(psnr for _, psnr in points) < level:
            assert seconds == "never"
            continue
        after, high = next(point for point in points if point[1] >= level)
        before, low = points[points.index((after, high)) - 1]
        assert before < steps <= after
        assert low + (high - low) * (steps - before) / (after - before) == pytest.approx(level, abs=1e-3)
        assert seconds == pytest.approx(steps * ms / 1000, rel=0.02)


def test_the_map_of_the_drift_has_every_cell_at_its_codes_per_latent(results: ModuleType) -> None:
    """Of which an image of 32 px has 64."""
    table, cells = results.read_all()["drift-map"], dict[tuple[Any, ...], Any]()
    for path in (ROOT / "docs" / "results" / "collapse-drift" / "cells").glob("*/cell.json"):
        cell = json.loads(path.read_text())
        place = cell["codebook_size"], cell["config"]["batch_size"], KNOWN_METHODS[cell["method"]].label
        cells[place] = cell["values"]
    assert len(cells) == len(table.rows)
    before = 0.0
    for words, codes, batch, method, *values in table.rows:
        share = float(Fraction(words.partition(":")[0]))
        assert share == codes / (64 * batch)
        assert share >= before
        before, found = share, cells[codes, batch, method]
        assert values == [pytest.approx(found[name], rel=1e-5) if name in found else None for name in table.columns[4:]]


def test_a_printed_table_comes_back_as_it_was(tables: ModuleType) -> None:
    text = "| method | N | PSNR | usage | note |\n| --- | ---: | ---: | ---: | --- |\n"
    text += "| VQ | 1024 | 20.50 ± 0.25 | 0.125 | ≤ 3 ✓ |\n| EMA |  | 21.00 | 1.000 |  |\n"
    found = tables.from_text(text, "t", "c", "a")
    assert found.columns == ["method", "N", "psnr", "usage", "note"]
    assert found.rows == [["VQ", 1024, [20.5, 0.25], 0.125, "≤ 3 ✓"], ["EMA", None, 21.0, 1.0, None]]
    rendered = tables.render(found).splitlines()
    assert rendered[0] == "| method | N | PSNR (dB) ↑ | Usage ↑ | note |"
    assert rendered[2:] == ["| VQ | 1024 | 20.50 ± 0.25 | 12.5% | ≤ 3 ✓ |", "| EMA |  | 21.00 | 100.0% |  |"]
    assert len(tables.render(found, {"method": ["EMA"]}).splitlines()) == 3
    with pytest.raises(ValueError, match="unknown column 'psnrr'; known, nearest first: psnr"):
        tables.render(found, columns=["psnrr"])


def test_a_comparison_is_taken_over(results: ModuleType, tables: ModuleType, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "x", sweep=None, seeds=(0, 1), images=1, size=16, trouble=False)
    found = results.from_comparison(load_comparison(folder))
    tables.save(found, tmp_path / "x.json")
    assert tables.Results(**json.loads((tmp_path / "x.json").read_text())) == found
    assert found.columns[:2] == ["method", "kid"]
    assert len(found.rows) == 8
    cells = [json.loads(path.read_text()) for path in folder.glob("cells/sim_vq--None--seed*/cell.json")]
    row = next(row for row in found.rows if row[0] == "SimVQ")
    mean = sum(cell["values"]["psnr"] for cell in cells) / 2
    assert row[found.columns.index("psnr")][0] == pytest.approx(mean, rel=1e-5)
    assert "n = 256" in found.about


def test_each_size_has_a_column_and_the_rows_of_another_file_fill_in(results: ModuleType, tables: ModuleType) -> None:
    columns = ["method", "codebook size K", "psnr", "usage"]
    first = tables.Results("t", "c", "a", columns, [["A", 1024, 20.0, 0.5], ["A", 64, 19.0, 1.0]], {"usage": 0})
    other = tables.Results("o", "c", "a", ["usage", *columns[:3]], [[0.25, "B", 64, 18.0], [0.75, "A", 64, 17.0]])
    everything = {"first": first, "other": other}
    marked = '<!-- results: first with=other "across=codebook size K" columns=psnr,usage{} -->\n<!-- end -->'
    page = results.rendered(marked.format(""), everything).splitlines()
    assert page[1:5] == [
        "| method | K = 64 | K = 1024 |",
        "| --- | --- | --- |",
        "| A | 19.00 / 100% | 20.00 / 50% |",
        "| B | 18.00 / 25% |  |",
    ]
    lines = results.rendered(
        marked.replace(' "across=codebook size K" columns=psnr,usage{}', ""), everything
    ).splitlines()
    assert [line.split(" | ")[:3] for line in lines[3:6]] == [
        ["| A", "1024", "20.00"], ["| A", "64", "19.00"], ["| B", "64", "18.00"],
    ]  # fmt: skip
    assert "| A |" not in results.rendered(marked.format(" method=B"), everything)
    turned = '<!-- results: first "down=codebook size K" across=method columns=psnr -->\n<!-- end -->'
    assert results.rendered(turned, everything).splitlines()[1:5] == [
        "| codebook size K | A |", "| --- | --- |", "| 1024 | 20.00 |", "| 64 | 19.00 |",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no row of 't' has"):
        results.rendered(marked.format(" method=C"), everything)


def test_the_papers_numbers_are_those_of_the_recipes(results: ModuleType) -> None:
    page = results.rendered("<!-- results: table-best-published -->\n<!-- end -->", results.read_all())
    assert page.splitlines()[1] == "| method | SSIM ↑ | LPIPS ↓ | rFID ↓ |"
    assert "| SimVQ | 0.93 | 0.017 | 14.37 |" in page


def test_regrets_are_over_the_conditions_of_all_files_and_of_methods_with_codes(
    results: ModuleType, tables: ModuleType
) -> None:
    columns = ["K", "method", "usage", "psnr", "seeds"]
    first = tables.Results("t", "c", "a", columns, [[64, "A", 1.0, 20.0, 1], [64, "B", 1.0, [21.0, 0.1], 1]])
    first.rows.append([64, "no codes", None, 40.0, 1])
    other = tables.Results("photographs", "c", "a", columns[1:], [["A", 0.5, 30.0, 1], ["B", 0.5, 28.5, 1]])
    everything = {"first": first, "other": other}
    page = results.rendered("<!-- results: first regret=psnr with=other -->\n<!-- end -->", everything).splitlines()
    assert page[1] == "| method | PSNR (dB), mean regret | PSNR (dB), worst | PSNR (dB), worst at |"
    assert page[3:5] == ["| A | 0.50 | 1.00 | K 64 |", "| B | 0.75 | 1.50 | photographs |"]


def test_the_numbers_of_the_readme_are_those_of_the_results(results: ModuleType) -> None:
    text, tables = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()), results.read_all()

    def value(name: str, column: str, *start: object) -> Any:
        (row,) = [row for row in tables[name].rows if row[: len(start)] == list(start)]
        found = row[tables[name].columns.index(column)]
        return found[0] if isinstance(found, list) else found

    for column, unit in (("ms", "ms"), ("extra MB", "MB")):
        ours, theirs = (value("benchmark-step", column, name) for name in ("NSVQ", "peer EMA"))
        assert f"| {ours} {unit} | {theirs:,} {unit} |" in text
    relocated = value("study-table-3-8192", "relocated", "NS-VQ (driftvq)")
    assert value("study-table-3-8192", "usage", "NS-VQ (driftvq)") == 1.0
    assert f"With 8,192 codes it moves {relocated:,.0f} in 5,000 steps, and all live" in text
    printed = [value("study-table-3", "usage", name) for name in ("NS-VQ, as printed", "TransVQ, as printed")]
    assert f"As printed, {printed[0] * 100:.0f} % and {printed[1] * 100:.0f} % of 1,024 codes live" in text
    for name in ("NSVQ", "TransVQ, MLP", "NSVQ without the drift"):
        assert value("collapse-ablation", "usage", 1024, name) == 1.0
    alone = [
        value("collapse-ablation", "usage", 1024, f"{name} without relocation") for name in ("NSVQ", "TransVQ, MLP,")
    ]
    shares = [f"{share * 100:.0f} %" for share in alone]
    assert (
        f"Relocation keeps the codes alive: without it {shares[0]} of 1,024 codes live, and {shares[1]} if TransVQ's"
        " network is the drift" in text
    )
    names = ("NSVQ", "EMA", "EMA + replacement below 2", "EMA + replacement below half of N/K")
    alive = [value("collapse-present", "usage", 1024, 64, name) * 100 for name in names]
    assert alive[2] == alive[3]
    assert f"nothing tuned | {alive[0]:.0f} % | {alive[1]:.1f} %; with replacement: {alive[2]:.0f} % |" in text
    ours, _, usual, tuned = (value("collapse-present", "psnr", 1024, 64, name) for name in names)
    assert f"at {usual:.2f} to {tuned:.2f} dB against NSVQ's {ours:.2f} (" in text
    ours, theirs = (value("launches-training", "operators", name) for name in ("ns_vq", "peer EMA"))
    assert value("launches-training", "host reads", "ns_vq") == 0
    assert value("launches-training", "host reads", "peer EMA") == 3
    assert f"{ours} operators without a host read, its {theirs} with three" in text
    regretted = [tables["collapse-regret"], tables["collapse-regret-photos"]]
    found = regrets(by_condition(regretted, "psnr"), "psnr")
    ours, network, tuned, usual = (
        found[name] for name in ("NS-VQ (driftvq)", "TransVQ-MLP (driftvq)", names[3], names[2])
    )
    each = [f"{of.mean:.2f} and {of.worst:.2f} dB" for of in (ours, network, tuned, usual)]
    words = (
        f"| {each[0]}; TransVQ-MLP: {each[1]} | tuned to batch and K: {each[2]}; with replacement below 2: {each[3]} |"
    )
    assert words in text
    assert sorted(found, key=lambda name: found[name].worst)[:2] == ["TransVQ-MLP (driftvq)", "NS-VQ (driftvq)"]
    assert f"² {ours.conditions} conditions, one seed" in text
    assert f"replacement below 2 in {usual.conditions} of them" in text


def test_the_summary_of_the_study_is_that_of_its_cells(results: ModuleType) -> None:
    text = " ".join((ROOT / "docs" / "study.md").read_text(encoding="utf-8").split())
    table = results.read_all()["study-cells"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    rows = [row for row in rows if row["K"] in (64, 1024, 8192)]

    def mean(value: Any) -> float:
        return float(value[0] if isinstance(value, list) else value)

    def kept(method: str, dim: int | None = None) -> str:
        label = KNOWN_METHODS[method].label
        shares = [100 * mean(row["usage"]) for row in rows if row["method"] == label and dim in (None, row["D"])]
        return f"{min(shares):.0f} to {max(shares):.0f} %"

    assert f"keeps {kept('ns_vq_paper')} of its codes, in the authors' code {kept('ns_vq_published')}," in text
    assert f"keeps {kept('trans_vq_paper')} of its codes, with the MLP {kept('trans_vq_mlp_paper')}," in text
    assert f"collapses with 64 dimensions ({kept('trans_vq_published', 64)})" in text
    ours = [KNOWN_METHODS[name].label for name in ("ns_vq", "trans_vq_mlp", "trans_vq")]
    assert all(mean(row["usage"]) > 0.9995 for row in rows if row["method"] in ours)
    variants = [KNOWN_METHODS[name].label for name in ("ns_vq_modified", "trans_vq_mlp_modified")]
    leads = []
    for codes, dim in dict.fromkeys((row["K"], row["D"]) for row in rows):
        here = [row for row in rows if (row["K"], row["D"]) == (codes, dim) and row["method"] not in variants]
        best = {
            mine: min(mean(row["rfid"]) for row in here if (row["method"] in ours) == mine) for mine in (True, False)
        }
        leads.append(100 * (1 - best[True] / best[False]))
    won = [lead for lead in leads if lead > 0]
    words = {2: "two", 3: "three", 4: "four", 5: "five", 6: "all"}
    assert f"lowest rFID in {words[len(won)]} of six, by {min(won):.1f} % to {max(won):.1f} %" in text
