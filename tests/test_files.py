import os
import stat
from pathlib import Path

import pytest

from driftvq.files import open_regular, replacing, write_text
from tests.limits import ends_within


def test_replaces_the_file_with_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    usual = tmp_path / "usual"
    usual.write_text("")
    assert write_text(path, "new\r\n") == path
    assert path.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert {file.name for file in tmp_path.iterdir()} == {"a.txt", "usual"}


def fail_halfway(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError("No space left on device")


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        fail_halfway(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"


def test_says_what_is_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_text(tmp_path / "nowhere" / "a.txt", "")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_text(tmp_path, "")


def test_only_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with open_regular(tmp_path / "x") as file:
        assert file.read() == b"abc"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with ends_within(20), pytest.raises(OSError, match="a pipe or device, not a file"):
            open_regular(path)
