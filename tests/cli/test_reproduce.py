"""What ``driftvq reproduce`` has of its own; what it shares with ``driftvq compare`` is in test_compare.py."""

import subprocess
import sys

import pytest

from driftvq.cli import main
from driftvq.experiments.recipes import RECIPES


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_lists_the_cells_and_writes_nothing(here, capsys):
    words = ["reproduce", "open-question", "--scale", "smoke", "--seeds", "2", "--dry-run", "--jobs", "2"]
    assert main(words) == 0
    output = capsys.readouterr().out
    for name in ("vq--k16-d3-b4--seed0", "kmeans_afterwards--k32-d3-b4--seed1", "autoencoder--d3-b4--seed0"):
        assert name in output
    assert "22 cells, 2 at a time" in output
    assert list(here.iterdir()) == []


def test_the_tables_have_the_numbers_of_the_paper(here, capsys):
    for number, title in ((2, "Table 2: codes of 3"), (3, "Table 3: codes of 64"), (4, "Table 4: each method")):
        assert main(["reproduce", f"table-{number}", "--scale", "smoke", "--methods", "fsq", "--dry-run"]) == 0
        assert capsys.readouterr().out.startswith(title)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("table-33", "table-3"), ("tabel-2", "table-2"), ("collapse", "collapse-few")]
)
def test_a_wrong_recipe_gets_the_nearest_before_anything_heavy_is_loaded(wrong, nearest):
    command = f"import sys; from driftvq.cli import main; main(['reproduce', '{wrong}']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert f"unknown recipe '{wrong}'; known, nearest first: {nearest}," in done.stderr
    assert done.stdout == "False\n"


def test_the_list_names_everything(capsys):
    assert main(["reproduce", "--list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in (*RECIPES, "ns_vq_paper", "smoke", "laptop", "paper"))
