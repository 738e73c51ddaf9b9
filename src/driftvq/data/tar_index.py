"""Where the files of a tar archive lie, from its headers alone: ``tarfile`` would keep training waiting for longer."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from driftvq.files import open_regular

BLOCK = 512
_REGULAR = b"0\0" + b"7"
_WITHOUT_DATA = b"123456"  # links, devices, folders and pipes: some writers give them a size, none gives them data
_EXTENSIONS = b"xgLK"
_LARGEST_EXTENSION = 1 << 20  # of an extended header, whose only use here is a long name
_FIRST_PIECE, _LARGEST_PIECE = 1 << 12, 1 << 20
"""Bytes read at once in search of a header: few at first, since after a bad one there is mostly a good one soon."""


class TarError(Exception):
    """The archive is damaged from here on."""


class _BadHeaderError(Exception):
    """One header cannot be believed; those after it may be sound, else ``ending`` says how the archive ends."""

    def __init__(self, reason: str, ending: str | None = None) -> None:
        super().__init__(reason)
        self.ending = ending


class Member(NamedTuple):
    """A regular file in an archive."""

    name: bytes
    offset: int
    size: int


def tar_members(path: Path, skipped: Callable[[str], None] = lambda reason: None) -> Iterator[Member]:
    """The regular files of an uncompressed archive (ustar, pax or GNU), in order.

    A member whose header is damaged is left out, and the search goes on at the next sound header; ``skipped`` is told
    where it is and what is wrong with it. Where none follows, it is a TarError after the last whole member.
    """
    with open_regular(path) as file:
        yield from _members(file.fileno(), os.fstat(file.fileno()).st_size, skipped)


def _members(handle: int, length: int, skipped: Callable[[str], None]) -> Iterator[Member]:
    position = 0
    name: bytes | None = None
    size: int | None = None
    while True:
        header = os.pread(handle, BLOCK, position)
        if len(header) < BLOCK:
            raise TarError("truncated" if position else "not a tar archive")
        try:
            if not header.strip(b"\0"):  # two empty blocks are the end; a single one between others was a header
                if os.pread(handle, BLOCK, position + BLOCK).strip(b"\0"):
                    raise _BadHeaderError("its header is empty")
                return
            kind, stored = _kind_and_size(header, position, length, size)
            data = position + BLOCK
            if kind == b"x":
                name, size = _extended(_read_extension(handle, data, stored), name, size)
            elif kind == b"L":
                name = _read_extension(handle, data, stored).rstrip(b"\0")
            elif kind not in b"gK":
                if kind in _REGULAR:
                    yield Member(_name(header) if name is None else name, data, stored)
                name, size = None, None
            position = data + -(-stored // BLOCK) * BLOCK
        except _BadHeaderError as error:
            following = _next_header(handle, position + BLOCK, length)
            if following is None:
                raise TarError(error.ending or f"damaged at byte {position:,}: {error}") from None
            skipped(f"the member at byte {position:,} is left out: {error}")
            position, name, size = following, None, None


def _kind_and_size(header: bytes, position: int, length: int, size: int | None) -> tuple[bytes, int]:
    """What a header is of, and how many bytes follow it; ``size`` comes from an extended header before it."""
    if not _sum_is_right(header):
        raise _BadHeaderError("the sum of its header is wrong", None if position else "not a tar archive")
    kind = header[156:157]
    if kind in _WITHOUT_DATA:
        return kind, 0
    stored = _number(header[124:136]) if size is None or kind in _EXTENSIONS else size
    left = length - position - BLOCK
    if stored > left:
        raise _BadHeaderError(f"its header announces {stored:,} bytes, the archive has {left:,} more", "truncated")
    return kind, stored


def _next_header(handle: int, position: int, length: int) -> int | None:
    """The next block whose sum is right; the search only goes forward, so all damage together costs one pass."""
    piece_size = _FIRST_PIECE
    while position + BLOCK <= length:
        piece = os.pread(handle, piece_size, position)
        for start in range(0, len(piece) - BLOCK + 1, BLOCK):
            if piece[start + 148 : start + 154].strip(b" \0").isdigit() and _sum_is_right(piece[start : start + BLOCK]):
                return position + start
        if len(piece) < BLOCK:
            break
        position += len(piece) // BLOCK * BLOCK
        piece_size = min(2 * piece_size, _LARGEST_PIECE)
    return None


def _sum_is_right(header: bytes) -> bool:
    try:
        expected = _number(header[148:156])
    except _BadHeaderError:
        return False
    counted = header[:148] + header[156:]
    total = sum(counted) + 8 * ord(" ")
    return expected == total or expected == total - 256 * sum(byte > 127 for byte in counted)  # some sum signed bytes


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form for what they cannot hold; never below 0."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0").split(b"\0", 1)[0].strip(b" ") or b"0"
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise _BadHeaderError(f"its header has {field!r} for a number")
    return int(digits, 8)


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _read_extension(handle: int, offset: int, size: int) -> bytes:
    if size > _LARGEST_EXTENSION:
        raise _BadHeaderError(f"an extended header of {size:,} bytes, more than {_LARGEST_EXTENSION:,}")
    return os.pread(handle, size, offset)


def _extended(records: bytes, name: bytes | None, size: int | None) -> tuple[bytes | None, int | None]:
    """Name and size out of pax records, "LENGTH KEY=VALUE" and a line break, where they are given."""
    start = 0
    while start < len(records):
        digits = records[start : start + 20].partition(b" ")[0]
        end = start + int(digits) if digits.isdigit() else start
        if not start + len(digits) < end <= len(records):
            raise _BadHeaderError("damaged in an extended header")
        key, _, value = records[start + len(digits) + 1 : end - 1].partition(b"=")
        if key == b"path":
            name = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 20:
                raise _BadHeaderError(f"its extended header has {value[:40]!r} for a size")
            size = int(value)
        start = end
    return name, size
