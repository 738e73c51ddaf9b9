"""Images of a folder, of a list file, or a single one."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from driftvq.data.images import SUFFIXES, Pixels, read_image
from driftvq.data.packed import PackedNames, split_rows
from driftvq.data.progress import counted
from driftvq.data.tree import Tree
from driftvq.files import open_regular

TRAIN_FOLDERS = ("train", "training")
VAL_FOLDERS = ("val", "validation", "valid", "test")

LONGEST_LINE = 1 << 16
"""Bytes of a path in a list; no system opens a longer one."""


class FileSource:
    """Image files below one folder, known by their names alone."""

    def __init__(
        self,
        root: Path,
        names: PackedNames,
        split: str,
        val_share: float,
        seed: int,
        problems: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.root = root
        self.problems = list(problems)
        self._names = names
        self._rows = split_rows(names, split, val_share, seed, str(root))

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """The path relative to the folder, with ``/``."""
        return self._names[int(self._rows[index])].decode("utf-8", "backslashreplace")

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """Decode one image; see :func:`driftvq.data.images.read_image`."""
        name = os.fsdecode(self._names[int(self._rows[index])])
        return read_image(os.path.join(self.root, name), min_side)  # noqa: PTH118 (a Path costs ten times as much)


def open_folder(root: Path, split: str, val_share: float, seed: int) -> FileSource:
    """All images below a folder, sorted; ``train/`` and ``val/`` in it, if both exist, are the splits."""
    folder, rest = split_folder(root, split)
    tree = Tree(os.fsencode(folder))
    names = PackedNames(counted(tree.images(), f"images found in {folder}"))
    problems = tree.problems
    if not len(names):
        trouble = f" ({problems[0][0]}: {problems[0][1]})" if problems else ""
        raise ValueError(f"no images in {folder} or below{trouble}; looked for {', '.join(sorted(SUFFIXES))}")
    return FileSource(folder, names, rest, val_share, seed, problems)


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


def open_single(path: Path) -> FileSource:
    """One image file."""
    return FileSource(path.parent, PackedNames([os.fsencode(path.name)]), "all", 0.5, 0)


def split_folder(root: Path, split: str) -> tuple[Path, str]:
    """The folder of a split and what is left to split in it: ``root/val, "all"``, or ``root, "val"``."""
    train = [root / name for name in TRAIN_FOLDERS if (root / name).is_dir()]
    val = [root / name for name in VAL_FOLDERS if (root / name).is_dir()]
    if split == "all" or not train or not val:
        return root, split
    return (train if split == "train" else val)[0], "all"


def _listed(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        name = (line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line).strip()
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            raise ValueError(f"line {number} of {file.name} has more than {LONGEST_LINE:,} bytes: no list of paths")
        if name and not name.startswith(b"#"):
            yield name
