"""Images of a folder, of a list file, or a single one; millions of names in little memory, and which are held out."""

import os
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from driftvq.data.images import SUFFIXES, Pixels, Problems, is_image_name, read_image
from driftvq.files import open_regular
from driftvq.progress import counted

SPLITS = ("train", "val", "all")


class PackedNames:
    """An immutable sequence of byte strings kept as one block and its offsets: length + 8 bytes a name.

    A list of str takes twice as much, and again in every worker, since reading an object changes its reference count.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        block, ends = bytearray(), array("Q", [0])
        for name in names:
            block += name
            ends.append(len(block))
        self._block = bytes(block)
        self._ends = np.frombuffer(ends, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} names")
        return self._block[int(self._ends[index]) : int(self._ends[index + 1])]

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))


def split_rows(names: Iterable[bytes], split: str, val_share: float, seed: int, where: str) -> NDArray[np.uint32]:
    """Which names belong to a split: a name is held out when its hash, with the seed, falls below the share.

    So a name stays in its split when others come or go. A set too small for that holds out the lowest hash. With a
    ``val_share`` of 0 nothing is held out. ``where`` is the data's origin, for the errors.
    """
    if not 0 <= val_share < 1 or (split == "val" and val_share == 0):
        raise ValueError(f"val_share must lie between 0 and 1, both excluded; received {val_share}")
    if split == "all" or val_share == 0:
        return np.arange(sum(1 for _ in names), dtype=np.uint32)
    key = str(seed).encode()
    hashes = (int.from_bytes(blake2b(name, digest_size=8, key=key).digest(), "little") for name in names)
    shares = np.fromiter(hashes, dtype=np.uint64) / 2.0**64
    held_out = shares < val_share
    if len(shares):
        held_out |= shares == shares.min()
        held_out &= shares != shares.max()
    rows = np.flatnonzero(held_out if split == "val" else ~held_out).astype(np.uint32)
    if not len(rows):
        few = f"{len(shares):,} image{'s' * (len(shares) != 1)}, too few to hold one out"
        raise ValueError(f"{where} has {few}; name images to validate on with --val-data")
    return rows


class Tree:
    """A search through a folder and those below it; memory is that of the folders' entries on the way down.

    Links are followed. A link to what has a place of its own in the tree is left out, and so is what comes by links a
    second time: no image comes twice (and lands in training and validation), circles end, and many links to many links
    take no longer than one. What was left out is in ``problems`` after the search.
    """

    def __init__(self, root: bytes) -> None:
        self.problems: Problems = []
        self._root, self._real_root = root, os.path.realpath(root)
        self._seen: set[tuple[int, int]] = set()  # device and inode: what it is, by whatever name
        self._links: set[bytes] = set()  # that wait to be followed

    def images(self) -> Iterator[bytes]:
        """Names of the image files relative to the folder, sorted folder by folder."""
        waiting = [(iter(self._entries(b"")), False)]  # an iterator a level, not a call: trees may be thousands deep
        while waiting:
            entries, outside = waiting[-1]
            entry = next(entries, None)
            if entry is None:
                waiting.pop()
                continue
            linked = outside or entry in self._links
            self._links.discard(entry)
            if entry.endswith(b"/"):
                waiting.append((iter(self._entries(entry)), linked))
            elif not linked or self._is_new(entry, "an image that is there already"):
                yield entry

    def _entries(self, folder: bytes) -> list[bytes]:
        """Images and folders in a folder (``b"x/"``), sorted; folders end with a slash."""
        try:
            if not self._is_new(folder, "a folder that is searched already"):
                return []
            with os.scandir(self._root + b"/" + folder) as entries:
                found = [(entry.name, self._kind(folder, entry)) for entry in entries if entry.name[:1] != b"."]
        except OSError as error:
            self._note(folder, f"cannot be listed: {error.strerror}")
            return []
        return [folder + name + kind for name, kind in sorted(found) if kind is not None]

    def _is_new(self, name: bytes, what: str) -> bool:
        """Whether this comes for the first time; later it is noted as a link to what it is."""
        try:
            info = os.stat(self._root + b"/" + name)  # noqa: PTH116 (bytes, which need not be text)
        except OSError:  # as whoever reads it will say
            return True
        known = (info.st_dev, info.st_ino) in self._seen
        self._seen.add((info.st_dev, info.st_ino))
        if known:
            self._note(name, f"a link to {what}")
        return not known

    def _kind(self, folder: bytes, entry: os.DirEntry[bytes]) -> bytes | None:
        """What to add to a name: a slash for a folder, nothing for an image; None leaves it out."""
        name, reason = folder + entry.name, None
        try:
            if entry.is_symlink():
                entry.stat()  # raises for a link that leads nowhere, or to itself
            kind = b"/" if entry.is_dir() else b""
            if not kind and not is_image_name(os.fsdecode(entry.name)):
                return None
            if not kind and not entry.is_file():
                reason = "a pipe or device, not a file"
            elif entry.is_symlink():
                target = os.path.realpath(entry.path)
                if kind or is_image_name(os.fsdecode(target)):
                    reason = self._needless(target)
                if reason is None:
                    self._links.add(name + kind)
        except OSError as error:
            reason = f"cannot be followed: {error.strerror}"
        if reason is None:
            return kind
        self._note(name, reason)
        return None

    def _needless(self, target: bytes) -> str | None:
        """Why a link to this is not followed: it is reached without links, no part hidden, or holds the root."""
        root = self._real_root.rstrip(b"/") + b"/"
        below = (target + b"/").removeprefix(root)
        if below != target + b"/" and not any(part.startswith(b".") for part in below.split(b"/")):
            return f"a link to {_text(target)}, which is searched itself"
        if root.startswith(target.rstrip(b"/") + b"/"):
            return f"a link to {_text(target)}, which contains the folder that is searched"
        return None

    def _note(self, name: bytes, reason: str) -> None:
        self.problems.append((_text(name or self._root), reason))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "validation", "valid", "test")
LONGEST_LINE = 1 << 16  # bytes of a path in a list; no system opens a longer one


class NamedRows:
    """Some of many names: what a source of images has that knows them by names."""

    _names: PackedNames
    _rows: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """The image's name: its path from the folder or shards on, with ``/``."""
        return _text(self._names[int(self._rows[index])])


class FileSource(NamedRows):
    """Image files below one folder, known by their names alone."""

    def __init__(self, root: Path, names: PackedNames, split: str, val_share: float, seed: int) -> None:
        self.root, self._names = root, names
        self.problems: Problems = []
        self._rows = split_rows(names, split, val_share, seed, str(root))

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        name = os.fsdecode(self._names[int(self._rows[index])])
        return read_image(os.path.join(self.root, name), min_side)  # noqa: PTH118 (a Path costs ten times as much)


def open_folder(root: Path, split: str, val_share: float, seed: int) -> FileSource:
    """All images below a folder, sorted; ``train/`` and ``val/`` in it, if both exist, are the splits."""
    folder, rest = split_folder(root, split)
    tree = Tree(os.fsencode(folder))
    names = PackedNames(counted(tree.images(), f"images found in {folder}"))
    if not len(names):
        raise no_images(f"{folder} or below", tree.problems)
    source = FileSource(folder, names, rest, val_share, seed)
    source.problems = tree.problems
    return source


def no_images(where: str, problems: Problems) -> ValueError:
    """The error of a source without images, with the first thing that went wrong in the search."""
    trouble = f" ({problems[0][0]}: {problems[0][1]})" if problems else ""
    return ValueError(f"no images in {where}{trouble}; looked for {', '.join(sorted(SUFFIXES))}")


def open_list(path: Path, split: str, val_share: float, seed: int) -> FileSource:
    """The images named in a text file, one a line, relative to it; empty lines and ``#`` lines do not count."""
    with open_regular(path) as file:
        names = PackedNames(_listed(file))
    if not len(names):
        raise ValueError(f"no paths in {path}; expected one image path a line")
    first = [os.fsdecode(names[index]) for index in range(min(len(names), 100))]
    if not any((path.parent / name).exists() for name in first):
        raise ValueError(f"none of the first {len(first)} paths in {path} exists, such as {path.parent / first[0]}")
    return FileSource(path.parent, names, split, val_share, seed)


def open_files(paths: Iterable[Path]) -> FileSource:
    """Image files that go by their paths."""
    return FileSource(Path(), PackedNames(map(os.fsencode, paths)), "all", 0.5, 0)


def split_folder(root: Path, split: str) -> tuple[Path, str]:
    """The folder of a split and what is left to split in it: ``root/val, "all"``, or ``root, "val"``."""
    train, val = ([root / name for name in known if (root / name).is_dir()] for known in (TRAIN_FOLDERS, VAL_FOLDERS))
    if split == "all" or not train or not val:
        return root, split
    return (train if split == "train" else val)[0], "all"


def _listed(file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
        name = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            raise ValueError(f"line {number} of {file.name} has more than {LONGEST_LINE:,} bytes: no list of paths")
        if name and not name.startswith(b"#"):
            yield name
