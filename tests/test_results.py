"""The tables and figures of the docs are what docs/results says."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.report.synthetic import write_comparison

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    return results


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
    assert {page.name for page in found} == {"living_codebooks.md", "results.md", "collapse.png"}
    results.outdated(docs, write=True)
    assert results.outdated(docs) == []
    for name in ("living_codebooks.md", "results.md"):
        assert "| 99.99 ± 0.50 |" in (docs / name).read_text()


def test_a_table_typed_over_is_put_right(results: ModuleType, docs: Path) -> None:
    page = docs / "tracking.md"
    before = page.read_text()
    page.write_text(before.replace("1.26 ± 0.00", "1.16 ± 0.00"))
    assert results.outdated(docs, write=True) == [page]
    assert page.read_text() == before


def test_a_printed_table_comes_back_as_it_was(results: ModuleType) -> None:
    text = "| method | N | PSNR | usage | note |\n| --- | ---: | ---: | ---: | --- |\n"
    text += "| VQ | 1024 | 20.50 ± 0.25 | 0.125 | ≤ 3 ✓ |\n| EMA |  | 21.00 | 1.000 |  |\n"
    found = results.from_text(text, "t", "c", "a")
    assert found.columns == ["method", "N", "psnr", "usage", "note"]
    assert found.rows == [["VQ", 1024, [20.5, 0.25], 0.125, "≤ 3 ✓"], ["EMA", None, 21.0, 1.0, None]]
    rendered = results.render(found).splitlines()
    assert rendered[0] == "| method | N | PSNR (dB) ↑ | Usage ↑ | note |"
    assert rendered[2:] == ["| VQ | 1024 | 20.50 ± 0.25 | 12.5% | ≤ 3 ✓ |", "| EMA |  | 21.00 | 100.0% |  |"]
    assert len(results.render(found, {"method": ["EMA"]}).splitlines()) == 3
    with pytest.raises(ValueError, match="unknown column 'psnrr'; known, nearest first: psnr"):
        results.render(found, columns=["psnrr"])


def test_a_comparison_is_taken_over(results: ModuleType, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "x", sweep=None, seeds=(0, 1), images=1, size=16, trouble=False)
    found = results.from_comparison(folder)
    results.save(found, tmp_path / "x.json")
    assert results.Results(**json.loads((tmp_path / "x.json").read_text())) == found
    assert found.columns[:2] == ["method", "kid"]
    assert len(found.rows) == 8
    cells = [json.loads(path.read_text()) for path in folder.glob("cells/sim_vq--None--seed*/cell.json")]
    row = next(row for row in found.rows if row[0] == "SimVQ")
    mean = sum(cell["values"]["psnr"] for cell in cells) / 2
    assert row[found.columns.index("psnr")][0] == pytest.approx(mean, rel=1e-5)
    assert "n = 256" in found.about


def test_regrets_are_over_the_conditions_of_all_files_and_of_methods_with_codes(results: ModuleType) -> None:
    columns = ["K", "method", "usage", "psnr", "seeds"]
    first = results.Results("t", "c", "a", columns, [[64, "A", 1.0, 20.0, 1], [64, "B", 1.0, [21.0, 0.1], 1]])
    first.rows.append([64, "no codes", None, 40.0, 1])
    other = results.Results("photographs", "c", "a", columns[1:], [["A", 0.5, 30.0, 1], ["B", 0.5, 28.5, 1]])
    everything = {"first": first, "other": other}
    page = results.rendered("<!-- results: first regret=psnr with=other -->\n<!-- end -->", everything).splitlines()
    assert page[1] == "| method | PSNR (dB), mean regret | PSNR (dB), worst | PSNR (dB), worst at |"
    assert page[3:5] == ["| A | 0.50 | 1.00 | K 64 |", "| B | 0.75 | 1.50 | photographs |"]
