import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.data.tar_index import Member, TarError, tar_members
from tests.limits import ends_within

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


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header whose sum is right, whatever its size field says."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def sound(name: bytes, data: bytes = b"abc") -> bytes:
    return header(name, b"%011o" % len(data)) + padded(data)


BAD_MEMBERS = {
    "a negative size": header(b"b.jpg", b"-0000001000") + padded(b"x"),
    "a size below zero in binary": header(b"b.jpg", b"\xff" * 12) + padded(b"x"),
    "a size beyond the archive": header(b"b.jpg", b"77777777777") + padded(b"x"),
    "a size of 88 bits": header(b"b.jpg", b"\x80" + b"\xff" * 11) + padded(b"x"),
    "letters for a size": header(b"b.jpg", b"12z") + padded(b"x"),
    "underscores in a size": header(b"b.jpg", b"1_0") + padded(b"x"),
    "digits that are not octal": header(b"b.jpg", b"00000000089") + padded(b"x"),
    "a wrong sum": b"?" + header(b"b.jpg", b"1")[1:] + padded(b"x"),
    "a lost header": bytes(512) + padded(b"x"),
    "an endless extended header": header(b"pax", b"%011o" % (3 << 20), b"x") + bytes(3 << 20),
    "an extended header without an end": header(b"pax", b"%011o" % 9, b"x") + padded(b"9" * 9),
    "a length of 900 digits": header(b"pax", b"%011o" % 900, b"x") + padded(b"9" * 900),
    "a length of nothing": header(b"pax", b"%011o" % 9, b"x") + padded(b"0 path=x\n"),
    "an extended size below zero": header(b"pax", b"%011o" % 11, b"x") + padded(b"11 size=-5\n"),
}


@pytest.mark.parametrize("what", BAD_MEMBERS)
def test_a_bad_member_is_left_out_and_named_by_its_place(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(sound(b"a.jpg") + BAD_MEMBERS[what] + sound(b"c.jpg", b"c" * 700) + sound(b"d.jpg") + bytes(1024))
    reasons: list[str] = []
    with ends_within(20):
        members = list(tar_members(path, reasons.append))
    assert [member.name for member in members] == [b"a.jpg", b"c.jpg", b"d.jpg"]
    assert path.read_bytes()[members[1].offset :][: members[1].size] == b"c" * 700
    (reason,) = reasons
    assert reason.startswith("the member at byte 1,024 is left out: ")


@pytest.mark.parametrize("what", [what for what in BAD_MEMBERS if what != "a lost header"])
def test_a_bad_member_at_the_end_ends_the_archive(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(sound(b"a.jpg") + BAD_MEMBERS[what])
    members = tar_members(path)
    assert next(members).name == b"a.jpg"
    with pytest.raises(TarError, match=r"truncated|damaged at byte 1,024: "):
        next(members)


def test_headers_summed_as_signed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    block = bytearray(header("é.jpg".encode(), b"0"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % (sum(block) - 2 * 256)
    path.write_bytes(bytes(block) + bytes(1024))
    assert [member.name for member in tar_members(path)] == ["é.jpg".encode()]


def test_the_search_for_a_sound_header_reads_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header(b"b.jpg", b"-1") * 3000 + sound(b"a.jpg") + bytes(1024))
    read = 0
    pread = os.pread

    def counting(handle: int, count: int, offset: int) -> bytes:
        nonlocal read
        data = pread(handle, count, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert [member.name for member in tar_members(path)] == [b"a.jpg"]
    assert read < 20 * path.stat().st_size


def test_many_short_records_take_no_quadratic_time(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    records = b"5 a=\n" * 200_000
    path.write_bytes(
        (header(b"pax", b"%011o" % len(records), b"x") + padded(records)) * 3 + sound(b"a.jpg") + bytes(1024)
    )
    with ends_within(20):  # copying the rest at each record took minutes
        assert len(list(tar_members(path, pytest.fail))) == 1


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(OSError, match="a pipe or device, not a file"):
        next(tar_members(tmp_path / "x.tar"))


@given(st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=12)), max_size=4), st.integers(0, 4096))
@settings(max_examples=150, deadline=None)
def test_any_damage_ends_with_members_inside_the_archive(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    write(path, {"a.jpg": b"a" * 600, "b" * 120 + ".png": b"b", "c.jpg": b""}, tarfile.PAX_FORMAT, mtime=0.5)
    data = bytearray(path.read_bytes()[:4096])
    for place, change in changes:
        data[place : place + len(change)] = change
    path.write_bytes(data[:cut])
    members, reasons = [], []
    try:
        members += tar_members(path, reasons.append)
    except TarError as error:
        reasons.append(str(error))
    assert len(members) + len(reasons) <= 9
    assert all(member.offset >= 512 and member.offset + member.size <= len(data[:cut]) for member in members)
