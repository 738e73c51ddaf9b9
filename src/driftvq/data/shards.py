"""Images in WebDataset tar shards, indexed once so that any of them can be read at any time.

The samples are read by their offsets, not through the webdataset package: the order of its streams depends on the
number of workers, and they cannot be resumed without reading up to a position. With an index each rank and worker reads
exactly its own samples, however few shards there are, and the length of an epoch is known.
"""

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from driftvq.data.folder import TRAIN_FOLDERS, VAL_FOLDERS, NamedRows, PackedNames, no_images, split_rows
from driftvq.data.images import USABLE, BadImageError, Pixels, Problems, is_image_name, read_image
from driftvq.data.tar_index import Member, TarError, tar_members
from driftvq.files import open_regular
from driftvq.machine import available_memory
from driftvq.progress import counted

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
LARGEST_IMAGE, SMALL_MEMBER = 1 << 30, 1 << 24
"""In bytes; a member is read at once, and a sparse file may claim any size. A small one always fits into memory."""
MAX_SHARDS = 1_000_000
_BRACES = re.compile(r"\{([^{}]*)\}")


class ShardSource(NamedRows):
    """The images of uncompressed tar shards: of each sample (members that differ after the first dot) the image."""

    def __init__(self, shards: list[Path], split: str, val_share: float, seed: int) -> None:
        self.shards = shards
        self.problems: Problems = []
        common = Path(os.path.commonpath([shard.parent for shard in shards]))
        self._shard_names = [shard.relative_to(common).as_posix() for shard in shards]
        self._shard_of, self._offsets, self._sizes = array("I"), array("Q"), array("Q")
        self._names = PackedNames(counted(self._scan(), "images found in shards"))
        if not len(self._names):
            raise no_images(f"{len(shards)} shards such as {shards[0]}", self.problems)
        self._rows = split_rows(self._names, split, val_share, seed, str(shards[0]))
        of_rows = np.asarray(self._shard_of)[self._rows]
        self.block_ends = np.searchsorted(of_rows, np.arange(len(shards)), side="right").astype(np.int64)

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """Decode one sample's image."""
        row = int(self._rows[index])
        size = self._sizes[row]
        largest = LARGEST_IMAGE if size <= SMALL_MEMBER else min(LARGEST_IMAGE, int(USABLE * available_memory()))
        if size > largest:
            raise BadImageError(f"{size:,} bytes, more than {largest:,}", self.name(index))
        try:
            with open_regular(self.shards[self._shard_of[row]]) as file:
                file.seek(self._offsets[row])
                data = file.read(size)
        except OSError as error:
            raise BadImageError(f"the shard cannot be read: {error.strerror}", self.name(index)) from error
        if len(data) < size:
            raise BadImageError("the shard ends before this image does", self.name(index))
        return read_image(data, min_side)

    def _scan(self) -> Iterator[bytes]:
        """Note where each image lies and yield its name; what is wrong with a shard becomes a problem."""
        for number, shard in enumerate(self.shards):
            before, damage = len(self._offsets), ""
            try:
                for member in _one_per_key(shard, partial(self._note, number)):
                    self._shard_of.append(number)
                    self._offsets.append(member.offset)
                    self._sizes.append(member.size)
                    yield os.fsencode(self._shard_names[number]) + b"/" + member.name
            except (TarError, OSError) as error:
                damage = getattr(error, "strerror", None) or str(error)
            count = len(self._offsets) - before
            if damage or not count:
                text = f"{damage}; {count:,} images before that are used" if count else damage or "no images in it"
                self._note(number, text)

    def _note(self, number: int, reason: str) -> None:
        self.problems.append((self._shard_names[number], reason))


def expand_braces(pattern: str) -> list[str]:
    """``x-{000..002}.tar`` and ``x-{a,b}.tar`` written out; zeros in front keep the width."""
    names = list(islice(_expanded(pattern), MAX_SHARDS + 1))
    if len(names) > MAX_SHARDS:
        raise ValueError(f"{pattern} names more than {MAX_SHARDS:,} shards")
    return names


def _expanded(pattern: str) -> Iterator[str]:
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    numbers = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", found[1])
    choices: Iterable[str] = found[1].split(",")
    if numbers is not None:
        first, last = int(numbers[1]), int(numbers[2])
        if last < first:
            raise ValueError(f"the range {found[0]} in {pattern} runs backwards")
        choices = (str(number).zfill(len(numbers[1])) for number in range(first, last + 1))
    for choice in choices:
        yield from _expanded(pattern[: found.start()] + choice + pattern[found.end() :])


def open_pattern(pattern: str, split: str, val_share: float, seed: int) -> ShardSource:
    """The shards of a brace pattern, or a single one; all of them have to exist."""
    shards = [Path(name).expanduser() for name in expand_braces(pattern)]
    missing = [shard for shard in shards if not shard.is_file()]
    if missing:
        raise ValueError(f"{len(missing)} of {len(shards)} shards of {pattern} do not exist, the first is {missing[0]}")
    return ShardSource(shards, split, val_share, seed)


def find_shards(folder: Path, split: str) -> list[Path]:
    """The tar files of a folder that has neither images nor folders; for "all" also those in its train/ and val/."""
    inner = [folder / name for name in (*TRAIN_FOLDERS, *VAL_FOLDERS)] if split == "all" else []
    return sorted(shard for place in (folder, *inner) if place.is_dir() for shard in _tars(place))


def _tars(folder: Path) -> list[Path]:
    tars = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if is_image_name(entry.name) or os.path.isdir(entry.path):  # noqa: PTH112 (False for a link to itself)
                return []
            if entry.name.lower().endswith(".tar"):
                tars.append(folder / entry.name)
    return tars


def _one_per_key(shard: Path, skipped: Callable[[str], None]) -> Iterator[Member]:
    """Of neighbours with one key the image whose extension is plain: ``7.jpg`` rather than ``7.mask.png``."""
    held, held_key, held_plain = None, b"", False
    try:
        for member in tar_members(shard, skipped):
            folder, _, base = member.name.rpartition(b"/")
            stem, _, extension = base.partition(b".")
            if not stem or not is_image_name(os.fsdecode(base)):
                continue
            key, plain = folder + b"/" + stem, b"." not in extension
            if held is not None and key != held_key:
                yield held
            if held is None or key != held_key or (plain and not held_plain):
                held, held_key, held_plain = member, key, plain
    except TarError:
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held
