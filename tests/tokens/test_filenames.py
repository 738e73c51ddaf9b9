from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.data.images import SUFFIXES
from driftvq.tokens.filenames import place_image


def place_all(root, names):
    """The files of names, each made before the next is placed."""
    files = []
    for name in names:
        path = place_image(root, name, SUFFIXES)
        assert not path.exists()
        path.touch()
        files.append(path.relative_to(root).as_posix())
    return files


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.jpg", "a.png"),
        ("a/b/c.JPEG", "a/b/c.png"),
        ("a.png", "a.png"),
        ("archive.v2", "archive.v2.png"),
        ("plain", "plain.png"),
        ("../../etc/passwd", "etc/passwd.png"),
        ("/etc/passwd", "etc/passwd.png"),
        ("a/../../b.jpg", "a/b.png"),
        ("./a//b.jpg", "a/b.png"),
        ("..", "image.png"),
        ("", "image.png"),
        ("...", "image.png"),
        ("C:\\x\\y.jpg", "C__x_y.png"),
        ("a\nb\0c.jpg", "a_b_c.png"),
        ("\udcff.jpg", "_.png"),
        ("ünï.jpg", "ünï.png"),
        (".jpg", ".jpg.png"),
    ],
)
def test_names_become_files_below_the_folder(name, file, tmp_path):
    assert place_all(tmp_path, [name]) == [file]


def test_images_that_differ_by_their_suffix_keep_both(tmp_path):
    names = ["a.jpg", "a.png", "a.jpg.png", "a.webp", "../a.jpg"]
    assert place_all(tmp_path, names) == ["a.png", "a.png.png", "a.jpg.png", "a.webp.png", "a.jpg.2.png"]


def test_a_folder_does_not_take_the_place_of_an_image(tmp_path):
    assert place_all(tmp_path, ["a.jpg", "a.png/b.jpg"]) == ["a.png", "a.png_/b.png"]


def test_an_image_does_not_take_the_place_of_a_folder(tmp_path):
    assert place_all(tmp_path, ["a.png/b.jpg", "a.jpg"]) == ["a.png/b.png", "a.jpg.png"]


def test_long_names_are_cut_and_stay_apart(tmp_path):
    first, second = place_all(tmp_path, ["é" * 300 + "1.jpg", "é" * 300 + "2.jpg"])
    assert first != second
    assert max(len(file.encode()) for file in (first, second)) < 220
    assert first.endswith(".png")
    assert not first.endswith(".jpg.png")


@pytest.mark.parametrize("name", ["n" * 10_000 + ".jpg", "d/" * 5_000 + "x.jpg", ("n" * 190 + "/") * 50 + "x.jpg"])
def test_a_name_of_ten_thousand_characters_has_a_place(name, tmp_path):
    first, second = place_all(tmp_path, ["1" + name, "2" + name])
    assert first != second
    assert max(len(file.encode()) for file in (first, second)) < 850
    assert first[0] == "1"


def test_images_of_one_name_are_not_looked_for_one_by_one(tmp_path, monkeypatch):
    looked, exists = [], Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: looked.append(path) or exists(path))
    files = place_all(tmp_path, ["a/b.jpg"] * 500)
    assert files == ["a/b.png", "a/b.jpg.png", *(f"a/b.jpg.{number}.png" for number in range(2, 500))]
    assert len(looked) < 500 * 25


PIECES = st.sampled_from(["..", ".", "", "a", "a.jpg", "a.png", "~", "C:", "\\", "..\\..", " ", "..."])
NAMES = st.lists(PIECES | st.text(max_size=4), min_size=1, max_size=5).map("/".join)


@given(st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_name_leads_out_of_the_folder_or_onto_another(names):
    with TemporaryDirectory() as folder:
        root = Path(folder) / "inside" / "root"
        root.mkdir(parents=True)
        files = place_all(root, names)
        assert len(set(files)) == len(names)
        assert all((root / file).resolve().is_relative_to(root.resolve()) for file in files)
        assert [path for path in Path(folder).rglob("*") if not path.is_relative_to(root)] == [Path(folder) / "inside"]
    with TemporaryDirectory() as again:
        assert place_all(Path(again), names) == files
