import subprocess
import sys
from pathlib import Path

import pytest

from driftvq.data import open_source
from driftvq.data.sources import absolute
from tests.data.files import fill


def test_a_wrong_path_names_the_nearest_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match=rf"no such file or folder: .*/photos/2024/x; .* is {tmp_path}/photos$"):
        open_source(tmp_path / "photos" / "2024" / "x")
    with pytest.raises(ValueError, match=rf"nearest folder that exists is {Path.cwd()}$"):
        open_source("no/such/folder")


def test_unknown_kinds_and_splits(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b")
    with pytest.raises(ValueError, match=r"cannot tell what .*x\.csv holds; allowed: a folder, .*hf:NAME"):
        open_source(path)
    with pytest.raises(ValueError, match="unknown split 'valid'; known, nearest first: val"):
        open_source(tmp_path, "valid")
    with pytest.raises(ValueError, match="empty text; allowed"):
        open_source("")


def test_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(tmp_path / "photos", 2)
    assert len(open_source("~/photos", "all")) == 2


def test_a_folder_with_braces_in_its_name(tmp_path: Path) -> None:
    fill(tmp_path / "a{1..2}", 2)
    assert len(open_source(tmp_path / "a{1..2}", "all")) == 2


def test_embedded_photographs_need_no_heavy_imports() -> None:
    code = (
        "import sys; from driftvq.data import open_source; open_source(None); "
        "print([name for name in ('skimage', 'sklearn', 'datasets', 'webdataset', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_single_image_is_not_trained_on_and_held_out(tmp_path: Path) -> None:
    (image,) = fill(tmp_path, 1)
    assert len(open_source(str(image), "all")) == 1
    with pytest.raises(ValueError, match="too few to hold one out"):
        open_source(str(image), "val")


def test_data_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute("photos") == absolute("~/photos") == str(tmp_path / "photos")
    assert (absolute(None), absolute("hf:cifar10")) == (None, "hf:cifar10")
