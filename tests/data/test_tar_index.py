import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.data.tar_index import Member, TarError, tar_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def write(path: Path, files: dict[str, bytes], kind: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> None:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            tar.addfile(info, BytesIO(data))


def by_tarfile(path: Path) -> list[Member]:
    with tarfile.open(path) as tar:
        return [Member(m.name.encode("utf-8", "surrogateescape"), m.offset_data, m.size) for m in tar if m.isreg()]


@pytest.mark.parametrize("kind", FORMATS)
def test_members_equal_those_of_tarfile(kind: int, tmp_path: Path) -> None:
    long = "f" * 60 + "/" + "n" * 90 + ".jpg"
    names = ["a.jpg", "sub/b.png", long, "empty.txt"] + (["ü/größe.jpg", "x" * 300] if kind != FORMATS[0] else [])
    path = tmp_path / "x.tar"
    write(path, {name: bytes(500 * number) for number, name in enumerate(names)}, kind, mtime=1.25)
    members = list(tar_members(path))
    assert members == by_tarfile(path)
    assert [member.name.decode() for member in members] == names


@given(st.lists(st.tuples(st.text("ab/ü", min_size=1, max_size=200), st.integers(0, 1500)), max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_names_and_sizes(tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    for kind in FORMATS[1:]:
        write(path, {f"{name}.jpg": bytes(size) for name, size in files}, kind)
        expected = [(member.offset, member.size) for member in by_tarfile(path)]
        assert [(member.offset, member.size) for member in tar_members(path)] == expected


def test_folders_and_links_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo(f"{kind!r}.jpg")
            info.type, info.linkname = kind, "elsewhere"
            tar.addfile(info)
        info = tarfile.TarInfo("real.jpg")
        info.size = 3
        tar.addfile(info, BytesIO(b"abc"))
    ((name, offset, size),) = tar_members(path)
    assert name == b"real.jpg"
    assert path.read_bytes()[offset : offset + size] == b"abc"


@pytest.mark.parametrize("cut", [512 + 100, 512 + 1024, 512 + 1024 + 300, 512 + 1024 + 512 + 5])
def test_a_truncated_archive_gives_its_whole_members_first(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write(path, {"a.jpg": bytes(1000), "b.jpg": bytes(1000)})
    path.write_bytes(path.read_bytes()[:cut])
    members = tar_members(path)
    if cut >= 512 + 1024:
        assert next(members).name == b"a.jpg"
    with pytest.raises(TarError, match="truncated"):
        next(members)


def test_damage_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write(path, {"a.jpg": bytes(512), "b.jpg": bytes(512)})
    data = bytearray(path.read_bytes())
    data[1024:1030] = b"\xff" * 6
    path.write_bytes(data)
    members = tar_members(path)
    assert next(members).name == b"a.jpg"
    with pytest.raises(TarError, match="damaged at byte 1,024"):
        next(members)


@pytest.mark.parametrize("data", [b"", b"short", b"this is text, not tar " * 100])
def test_what_is_no_archive(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with pytest.raises(TarError, match="not a tar archive"):
        list(tar_members(path))
