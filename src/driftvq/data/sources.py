"""Where images come from: one way to name a source, one interface to all of them."""

import os
from pathlib import Path
from typing import Protocol

from driftvq.data.embedded import EmbeddedSource
from driftvq.data.folder import open_folder, open_list, open_single, split_folder
from driftvq.data.hugging_face import open_hugging_face
from driftvq.data.images import Pixels, is_image_name
from driftvq.data.packed import SPLITS
from driftvq.data.shards import ShardSource, find_shards, open_pattern, refuse_compressed
from driftvq.names import check_name

LISTS = (".txt", ".lst")

KINDS = "a folder, a .txt or .lst list, an image, .tar shards (also as name-{000..099}.tar) or hf:NAME[:SPLIT]"


class ImageSource(Protocol):
    """Images that can be counted, named and read in any order."""

    problems: list[tuple[str, str]]
    """What was found unreadable while opening, as (name, reason)."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A name that no other image of the source has."""
        ...

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """uint8 RGB ``(h, w, 3)``; ``min_side`` allows a smaller decoding, as in ``read_image``.

        Raises:
            BadImageError: this image cannot be read.
        """
        ...


def open_source(
    spec: str | os.PathLike[str] | None, split: str = "train", val_share: float = 0.05, seed: int = 0, size: int = 64
) -> ImageSource:
    """Open images by what the user wrote.

    Args:
        spec: None (embedded photographs), a folder, a ``.txt`` or ``.lst`` list of paths, one image, WebDataset shards
            (a ``.tar``, ``name-{000..099}.tar``, a folder of them), ``hf:NAME[:SPLIT]`` or ``hf:DIRECTORY[:SPLIT]``.
        split: "train", "val", or "all" for a source that is not to be split.
        val_share: share held out by a hash of the names where the source has no splits of its own.
        seed: of that hash.
        size: side of the tiles of the embedded photographs; other sources ignore it.

    Raises:
        ValueError: nothing there, no images in it, or an unknown kind; said before any work starts.
    """
    check_name("split", split, SPLITS)
    if spec is None:
        return EmbeddedSource(split, size)
    text = os.fspath(spec)
    if text.startswith("hf:"):
        return open_hugging_face(text.removeprefix("hf:"), split, val_share, seed)
    if not text:
        raise ValueError(f"the data is named by an empty text; allowed: {KINDS}")
    path = Path(text).expanduser()
    if path.is_dir():
        return _open_directory(path, split, val_share, seed)
    if "{" in text and "}" in text and not path.exists():
        return open_pattern(text, split, val_share, seed)
    if not path.exists():
        raise ValueError(f"no such file or folder: {text}; {_nearest(path)}")
    return _open_file(path, split, val_share, seed)


def _open_directory(path: Path, split: str, val_share: float, seed: int) -> ImageSource:
    folder, rest = split_folder(path, split)
    shards = find_shards(folder, rest)
    return ShardSource(shards, rest, val_share, seed) if shards else open_folder(path, split, val_share, seed)


def _open_file(path: Path, split: str, val_share: float, seed: int) -> ImageSource:
    suffix = path.suffix.lower()
    if suffix in LISTS:
        return open_list(path, split, val_share, seed)
    if suffix == ".tar":
        return ShardSource([path], split, val_share, seed)
    refuse_compressed(path)
    if is_image_name(path.name):
        return open_single(path)
    raise ValueError(f"cannot tell what {path} holds; allowed: {KINDS}")


def _nearest(path: Path) -> str:
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    return f"the nearest folder that exists is {parent}"
