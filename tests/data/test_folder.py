import errno
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftvq.data import BadImageError, open_source
from driftvq.data.folder import PackedNames, split_rows
from driftvq.data.sources import ImageSource
from tests.data.files import encoded, fill, noise
from tests.limits import ends_within


@given(st.lists(st.binary(max_size=30)))
def test_names_come_back(names: list[bytes]) -> None:
    packed = PackedNames(iter(names))
    assert list(packed) == names
    assert [packed[index] for index in range(len(packed))] == names


def test_index_out_of_range() -> None:
    packed = PackedNames([b"a", b"b"])
    for index in (2, -1):
        with pytest.raises(IndexError, match="of 2 names"):
            packed[index]


def numbered(count: int) -> list[bytes]:
    return [b"%d.jpg" % number for number in range(count)]


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_splits_partition_the_names_with_the_share(share: float) -> None:
    train = split_rows(numbered(4000), "train", share, 0, "x")
    val = split_rows(numbered(4000), "val", share, 0, "x")
    assert sorted([*train, *val]) == list(range(4000))
    spread = (share * (1 - share) / 4000) ** 0.5
    assert abs(len(val) / 4000 - share) < 4 * spread


def test_a_name_keeps_its_split_when_others_come() -> None:
    few, many = (set(split_rows(numbered(count), "val", 0.1, 7, "x").tolist()) for count in (500, 900))
    assert few == {row for row in many if row < 500}


def test_the_seed_changes_what_is_held_out() -> None:
    first, second = (split_rows(numbered(500), "val", 0.1, seed, "x").tolist() for seed in (0, 1))
    assert first != second
    assert first == split_rows(numbered(500), "val", 0.1, 0, "x").tolist()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_small_sets_have_both_splits(count: int) -> None:
    for share in (0.001, 0.999):
        train = split_rows(numbered(count), "train", share, 0, "x")
        val = split_rows(numbered(count), "val", share, 0, "x")
        assert len(train) >= 1
        assert len(val) >= 1
        assert sorted([*train, *val]) == list(range(count))


def test_all_takes_everything() -> None:
    np.testing.assert_array_equal(split_rows(numbered(5), "all", 0.5, 0, "x"), np.arange(5))
    np.testing.assert_array_equal(split_rows(numbered(5), "train", 0, 0, "x"), np.arange(5))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"photos has 1 image, too few"):
        split_rows(numbered(1), "val", 0.05, 0, "photos")
    assert split_rows(numbered(1), "train", 0.05, 0, "photos").tolist() == [0]
    with pytest.raises(ValueError, match="val_share must lie between 0 and 1"):
        split_rows(numbered(9), "val", 0, 0, "x")
    for share in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="val_share must lie between 0 and 1"):
            split_rows(numbered(9), "train", share, 0, "x")


def names(source: ImageSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Permissions mean nothing to root: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_tmp_path(tmp_path: Path) -> Path:
    """A folder that other users may enter, as its parents' permissions allow no one else."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/10.png", "a.jpeg", "c/d/e.webp", "z.tif"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(noise(4, 4)))
    for name in ("notes.txt", ".hidden.png", "b/._2.png", ".cache/x.png", "c/thumbs.db"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    source = open_source(tmp_path, "all")
    assert names(source) == ["a.jpeg", "b/10.png", "b/2.PNG", "c/d/e.webp", "z.tif"]
    assert source.read(1).shape == (4, 4, 3)
    assert names(pickle.loads(pickle.dumps(source))) == names(source)


def test_a_folder_named_like_an_image_is_a_folder(tmp_path: Path) -> None:
    fill(tmp_path / "x.jpg", 2)
    assert names(open_source(tmp_path, "all")) == ["x.jpg/000.png", "x.jpg/001.png"]


def test_pipes_and_broken_links_are_listed(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    source = open_source(tmp_path, "all")
    assert names(source) == ["000.png"]
    assert dict(source.problems) == {
        "pipe.png": "a pipe or device, not a file",
        "device.png": "a pipe or device, not a file",
        "broken.png": "cannot be followed: No such file or directory",
    }


def test_a_link_to_itself_costs_no_image(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    (tmp_path / "loop").symlink_to("loop")
    source = open_source(tmp_path, "all")
    assert names(source) == ["000.png", "001.png"]
    ((name, reason),) = source.problems
    assert name == "loop"
    assert reason == f"cannot be followed: {os.strerror(errno.ELOOP)}"


def test_shards_beside_a_link_to_itself(tmp_path: Path) -> None:
    (image,) = fill(tmp_path / "in", 1)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(image, image.name)
    shutil.rmtree(tmp_path / "in")
    (tmp_path / "loop").symlink_to("loop")
    assert names(open_source(tmp_path, "all")) == ["x.tar/000.png"]


def test_links_are_followed_and_every_folder_comes_once(tmp_path: Path) -> None:
    fill(tmp_path / "photos" / "real", 1)
    fill(tmp_path / "outside", 2)
    (tmp_path / "photos" / "again").symlink_to("real")
    (tmp_path / "photos" / "real" / "up").symlink_to("..")
    (tmp_path / "photos" / "disk").symlink_to(tmp_path / "outside")
    (tmp_path / "photos" / "disk2").symlink_to(tmp_path / "outside")
    source = open_source(tmp_path / "photos", "all")
    assert names(source) == ["disk/000.png", "disk/001.png", "real/000.png"]
    photos = os.path.realpath(tmp_path / "photos")
    assert sorted(source.problems) == [
        ("again", f"a link to {photos}/real, which is searched itself"),
        ("disk2/", "a link to a folder that is searched already"),
        ("real/up", f"a link to {photos}, which is searched itself"),
    ]


def test_every_image_comes_once_whatever_links_lead_there(tmp_path: Path) -> None:
    fill(tmp_path / "photos" / "real", 1)
    fill(tmp_path / "outside", 3)
    (tmp_path / "blob").write_bytes((tmp_path / "outside" / "000.png").read_bytes())
    links = {"0.png": "real/000.png", "1.png": "../outside/001.png", "disk": "../outside", "z.png": "disk/002.png"}
    for name, target in (links | {"b.png": "../blob", "c.png": "b.png"}).items():
        (tmp_path / "photos" / name).symlink_to(target)
    source = open_source(tmp_path / "photos", "all")
    assert names(source) == ["1.png", "b.png", "disk/000.png", "disk/002.png", "real/000.png"]
    there = "a link to an image that is there already"
    assert dict(source.problems) == {
        "0.png": f"a link to {os.path.realpath(tmp_path)}/photos/real/000.png, which is searched itself",
        **dict.fromkeys(["c.png", "disk/001.png", "z.png"], there),
    }


def test_a_link_into_a_hidden_folder_is_the_only_way_there(tmp_path: Path) -> None:
    fill(tmp_path / ".store" / "a", 1)
    (tmp_path / "link").symlink_to(".store/a")
    source = open_source(tmp_path, "all")
    assert names(source) == ["link/000.png"]
    assert source.problems == []


@pytest.mark.parametrize("target", ["..", "/"])
def test_a_link_to_what_contains_the_folder_is_not_followed(target: str, tmp_path: Path) -> None:
    fill(tmp_path, 1)
    fill(tmp_path / "photos", 1)
    (tmp_path / "photos" / "up").symlink_to(target)
    with ends_within(30):
        source = open_source(tmp_path / "photos", "all")
    assert names(source) == ["000.png"]
    ((name, reason),) = source.problems
    assert name == "up"
    assert reason.endswith(", which contains the folder that is searched")


def test_a_fan_of_links_takes_no_longer_than_its_folders(tmp_path: Path) -> None:
    for level in range(40):
        folder = tmp_path / f"level-{level}"
        fill(folder, 1)
        for link in "abc":
            (folder / link).symlink_to(f"../level-{level + 1}" if level < 39 else "../level-0")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "start").symlink_to("../level-0")
    with ends_within(30):
        assert len(open_source(tmp_path, "all")) == 40
        assert len(open_source(tmp_path / "photos", "all")) == 40


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder that Python cannot remove: its own removal is recursive."""
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_thousands_of_levels_are_searched(deep: Path) -> None:
    fill(deep, 1)
    here = os.open(deep, os.O_RDONLY)
    try:  # step by step: no system takes the whole path
        for level in range(2500):
            os.mkdir("d", dir_fd=here)
            if level == 1200:
                os.link(deep / "000.png", "001.png", dst_dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
    finally:
        os.close(here)
    source = open_source(deep, "all")
    assert names(source) == ["000.png", "d/" * 1200 + "001.png"]
    ((name, reason),) = source.problems
    assert set(name) == {"d", "/"}
    assert reason == f"cannot be listed: {os.strerror(errno.ENAMETOOLONG)}"


@pytest.mark.parametrize("name", ["list.txt", "x.tar", "x.png"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with ends_within(20), pytest.raises((OSError, ValueError), match="a pipe or device, not a file"):
        open_source(tmp_path / name, "all").read(0)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    (path,) = fill(tmp_path, 1)
    try:
        path.rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")))
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    source = open_source(tmp_path, "all")
    assert names(source) == ["caf\\xe9.png"]
    assert source.read(0).shape == (8, 8, 3)


def test_own_splits(tmp_path: Path) -> None:
    fill(tmp_path / "train", 3)
    fill(tmp_path / "test", 1)
    assert names(open_source(tmp_path, "val")) == ["000.png"]
    fill(tmp_path / "validation", 2)
    assert len(open_source(tmp_path, "train")) == 3
    assert len(open_source(tmp_path, "val")) == 2  # before test
    assert len(open_source(tmp_path, "all")) == 6


def test_held_out_share(tmp_path: Path) -> None:
    fill(tmp_path, 60, side=1)
    train, val = (names(open_source(tmp_path, split, val_share=0.2)) for split in ("train", "val"))
    assert sorted(train + val) == names(open_source(tmp_path, "all"))
    assert 3 <= len(val) <= 25


def test_no_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no images in .*; looked for .*\.jpeg"):
        open_source(tmp_path)


def test_an_unreadable_folder_is_a_problem_not_the_end(open_tmp_path: Path) -> None:
    fill(open_tmp_path / "good", 1)
    fill(open_tmp_path / "secret", 1)
    (open_tmp_path / "secret").chmod(0)
    try:
        with ordinary_user():
            source = open_source(open_tmp_path, "all")
    finally:
        (open_tmp_path / "secret").chmod(0o755)
    assert names(source) == ["good/000.png"]
    ((folder, reason),) = source.problems
    assert folder.endswith("secret/")
    assert "Permission denied" in reason


def test_no_permission_and_deleted_after_the_scan(open_tmp_path: Path) -> None:
    paths = fill(open_tmp_path, 3)
    source = open_source(open_tmp_path, "all")
    paths[0].chmod(0)
    paths[1].unlink()
    with ordinary_user():
        with pytest.raises(BadImageError, match="Permission denied"):
            source.read(0)
        with pytest.raises(BadImageError, match="No such file"):
            source.read(1)
        assert source.read(2).shape == (8, 8, 3)


def test_list_file(tmp_path: Path) -> None:
    fill(tmp_path / "images", 3)
    listing = tmp_path / "list.txt"
    absolute = tmp_path / "images" / "002.png"
    listing.write_bytes(
        b"\xef\xbb\xbfimages/001.png\r\n\n# a remark\n  images/gone.png \n"
        + os.fsencode(absolute)
        + b"\nimages/000.png"
    )
    source = open_source(listing, "all")
    assert names(source) == ["images/001.png", "images/gone.png", str(absolute), "images/000.png"]
    assert source.read(0)[0, 0].tolist() == [1, 1, 1]
    assert source.read(2)[0, 0].tolist() == [2, 2, 2]
    with pytest.raises(BadImageError, match="No such file"):
        source.read(1)


def test_list_file_errors(tmp_path: Path) -> None:
    listing = tmp_path / "list.lst"
    listing.write_text("# nothing\n\n")
    with pytest.raises(ValueError, match="no paths in"):
        open_source(listing)
    listing.write_bytes(b"a.png\n" + bytes(1 << 17))
    with pytest.raises(ValueError, match=r"line 2 of .*list\.lst has more than 65,536 bytes"):
        open_source(listing)
    listing.write_text("gone/1.png\ngone/2.png\n")
    with pytest.raises(ValueError, match=r"none of the first 2 paths .* such as .*gone/1\.png"):
        open_source(listing)


def test_one_image(tmp_path: Path) -> None:
    (path,) = fill(tmp_path, 1)
    source = open_source(path, "all")
    assert names(source) == ["000.png"]
    assert source.read(0).shape == (8, 8, 3)
