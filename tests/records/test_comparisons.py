import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftvq.records.codec import read_record, write_record
from driftvq.records.comparisons import (
    Codes,
    Comparison,
    load_comparison,
    read_cell,
    read_codes,
    update_cell,
    write_cell,
)

CELL = "cells/sim_vq--None--seed0/cell.json"


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_everything_is_read(sweep_source: Path) -> None:
    comparison = load_comparison(sweep_source)
    assert comparison.seeds == (0, 1, 2)
    assert comparison.sweep is not None
    assert comparison.sweep.values == (64, 1024, 8192)
    assert len(comparison.cells) == 7 * 3 * 3 + 3
    assert comparison.paper is not None
    assert comparison.paper.rows[0].values == {"rfid": 21.3, "usage": 1.0}
    failed = [cell for cell in comparison.cells if cell.status == "failed"]
    assert [(cell.method, cell.point, cell.seed) for cell in failed] == [("ema_vq", 8192, 2)]
    assert failed[0].log_path.is_file()


def test_cells_that_are_not_there_are_waiting(plain: Path) -> None:
    shutil.rmtree(plain / "cells" / "sim_vq--None--seed1")
    shutil.rmtree(plain / "cells" / "vq--None--seed0")
    waiting = [(cell.method, cell.seed) for cell in load_comparison(plain).cells if cell.status == "waiting"]
    assert waiting == [("vq", 0), ("sim_vq", 1)]
    shutil.rmtree(plain / "cells")
    assert {cell.status for cell in load_comparison(plain).cells} == {"waiting"}


def test_a_value_that_is_not_finite_is_missing(plain: Path) -> None:
    edit(plain / CELL, values={"kid": float("nan"), "psnr": 20.0, "rfid": None})
    cell = next(cell for cell in load_comparison(plain).cells if cell.folder.name == Path(CELL).parent.name)
    assert cell.values == {"psnr": 20.0}


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("comparison.json", {"seeds": ["a"]}, ["comparison.json", "'seeds'[0] is 'a'", "a whole number"]),
        ("comparison.json", {"seeds": []}, ["'seeds' is empty"]),
        ("comparison.json", {"seeds": [0, 0]}, ["'seeds' names 0 more than once"]),
        ("comparison.json", {"colour": "red"}, ["unknown field 'colour'", "nearest first"]),
        ("comparison.json", {"places": [{"method": "x", "point": None, "seed": 0}]}, ["unknown method 'x'"]),
        ("comparison.json", {"format": 1}, ["format 1", "reads format 2"]),
        ("comparison.json", {"name": 3}, ["'name' is 3", "text"]),
        ("comparison.json", {"methods": [{"name": "a", "group": "x"}]}, ["'methods'[0]", "'label' is missing"]),
        (
            "comparison.json",
            {"methods": [{"name": "a", "label": "a", "group": "x"}]},
            ["'group' is 'x'", "ours or paper"],
        ),
        ("comparison.json", {"paper": {"source": "t"}}, ["'paper'", "'setting' is missing"]),
        (CELL, {"method": "simvq"}, ["cell.json", "unknown method 'simvq'", "nearest first: sim_vq"]),
        (CELL, {"status": "finished"}, ["cell.json", "'status'", "done or failed"]),
        (CELL, {"values": {"kid": "low"}}, ["cell.json", "'values'", "'kid' is 'low'", "a number"]),
        (CELL, {"seed": 1}, ["cell.json", "the same method, point and seed as"]),
        (CELL, {"point": 64}, ["cell.json", "none of the places"]),
        (CELL, {"seed": True}, ["'seed' is True", "a whole number"]),
    ],
)
def test_a_wrong_value_is_named_with_its_file(plain: Path, file: str, values: dict[str, Any], words: list[str]) -> None:
    edit(plain / file, **values)
    with pytest.raises(ValueError, match="json") as error:
        load_comparison(plain)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_record_comes_back_as_it_was(sweep_source: Path, tmp_path: Path) -> None:
    comparison = load_comparison(sweep_source)
    again = read_record(Comparison, write_record(tmp_path / "x.json", comparison), folder=sweep_source)
    assert replace(again, cells=comparison.cells) == comparison
    for cell in comparison.cells[:9]:
        write_cell(replace(cell, folder=tmp_path))
        assert replace(read_cell(tmp_path), folder=cell.folder) == cell
    codes = read_codes(comparison.cells[0])
    assert codes is not None
    assert read_record(Codes, write_record(tmp_path / "x.json", codes)) == codes


def test_codes_that_were_selected_less_than_never_are_none(plain: Path) -> None:
    cell = read_cell((plain / CELL).parent)
    (cell.folder / "codes.json").write_text('{"format": 2, "counts": [3, -3]}')
    assert read_codes(cell) is None


def test_an_update_of_a_field_that_there_is_not_changes_nothing(plain: Path) -> None:
    before = (plain / CELL).read_text()
    with pytest.raises(TypeError, match="statsu"):
        update_cell((plain / CELL).parent, statsu="done")
    assert (plain / CELL).read_text() == before


def test_damaged_json_is_named(plain: Path) -> None:
    (plain / CELL).write_text('{"format": 2, "me')
    with pytest.raises(ValueError, match=r"seed0/cell\.json is not valid JSON"):
        load_comparison(plain)
    (plain / CELL).write_text("[]")
    with pytest.raises(ValueError, match=r"holds \[\]; allowed: an object"):
        load_comparison(plain)


def test_no_comparison_is_said(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_comparison(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no comparison\.json; comparisons below it: .*plain"):
        load_comparison(tmp_path)
