import os

import pytest

from driftvq.experiments.comparison_folder import begin, find_folder, stored_request
from driftvq.experiments.design import Request
from driftvq.experiments.engine import run_comparison
from driftvq.experiments.plan import make_plan
from driftvq.files import locked
from driftvq.records.comparisons import load_comparison, read_cell, update_cell
from tests.experiments.smoke import smoke_plan

ASKED = Request(scale="smoke", methods=("vq",))


@pytest.fixture
def folder(tmp_path):
    begin(tmp_path / "x", smoke_plan(methods=("vq",)))
    return tmp_path / "x"


def test_a_new_folder_may_be_absent_or_empty(tmp_path):
    assert find_folder(ASKED, tmp_path, False) == tmp_path
    assert find_folder(ASKED, tmp_path / "new", False) == tmp_path / "new"


def test_the_same_comparison_needs_resume(folder):
    with pytest.raises(ValueError, match="already holds this comparison; to continue it add --resume"):
        find_folder(ASKED, folder, False)
    assert find_folder(ASKED, folder, True) == folder


@pytest.mark.parametrize("resume", [False, True])
def test_another_comparison_is_refused_by_the_names_of_what_differs(folder, resume):
    other = Request(scale="smoke", methods=("fsq",), seeds=2)
    with pytest.raises(ValueError, match=r"another comparison.*methods: \('vq',\) → \('fsq',\); seeds: None → 2"):
        find_folder(other, folder, resume)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty and holds no comparison"):
        find_folder(ASKED, tmp_path, True)
    with pytest.raises(ValueError, match="is a file"):
        find_folder(ASKED, tmp_path / "thesis.txt", False)
    with pytest.raises(ValueError, match="no comparison to resume"):
        find_folder(ASKED, tmp_path / "absent", True)


def test_what_was_asked_is_kept_and_can_be_repeated(tmp_path):
    request = Request("table-64d", "smoke", "my run", methods=("vq", "ns_vq"), seeds=2, codebook_size=(16, 32))
    begin(tmp_path, make_plan(request))
    assert stored_request(tmp_path) == request
    assert load_comparison(tmp_path).command == (
        "driftvq reproduce table-64d --scale smoke --name 'my run' --methods vq ns_vq --seeds 2 --codebook-size 16 32"
    )


def test_a_damaged_comparison_is_named(folder):
    (folder / "comparison.json").write_text("{")
    with pytest.raises(ValueError, match=r"comparison\.json is not valid JSON"):
        stored_request(folder)


def test_beginning_again_keeps_what_is_there(folder):
    (cell,) = (folder / "cells").iterdir()
    update_cell(cell, status="done")
    before = (folder / "comparison.json").read_text()
    begin(folder, smoke_plan(methods=("vq",)))
    assert read_cell(cell).status == "done"
    assert (folder / "comparison.json").read_text() == before


def test_two_engines_do_not_share_a_folder(folder, monkeypatch):
    monkeypatch.setattr("driftvq.experiments.engine.LOCK_SECONDS", 0.0)
    with locked(folder, "comparison"), pytest.raises(ValueError, match=f"another comparison, process {os.getpid()} on"):
        run_comparison(folder, smoke_plan(methods=("vq",)), 1, 1, 0)


def test_a_comparison_that_came_first_keeps_the_folder(folder):
    cells = sorted((folder / "cells").iterdir())
    with pytest.raises(ValueError, match="holds another comparison"):
        run_comparison(folder, smoke_plan(methods=("ns_vq",)), 1, 1, 0)
    assert sorted((folder / "cells").iterdir()) == cells
