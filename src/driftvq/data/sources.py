"""Where images come from: one way to name a source, one interface to all of them."""

import os
from pathlib import Path
from typing import Any, Protocol

from driftvq.data import folder as folders
from driftvq.data.embedded import EmbeddedSource
from driftvq.data.images import BadImageError, Pixels, Problems, is_image_name, read_image
from driftvq.data.shards import COMPRESSED, ShardSource, find_shards, open_pattern
from driftvq.names import check_name, needed, reason_of


class HuggingFaceSource(folders.NamedRows):
    """The image column of a table; the images are decoded here, like those of every other source."""

    def __init__(self, table: Any, column: str, label: str, split: str, val_share: float, seed: int) -> None:
        self.problems: Problems = []
        self._table, self._column, self._label = table, column, label
        numbers = (b"%d" % row for row in range(len(table)))
        self._rows = folders.split_rows(numbers, split, val_share, seed, f"the dataset {label}")

    def name(self, index: int) -> str:
        """Split and row, such as ``train-00000012``."""
        return f"{self._label}-{int(self._rows[index]):08d}"

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        try:
            record = self._table[int(self._rows[index])][self._column]
        except OSError as error:
            raise BadImageError(f"the dataset cannot be read: {error}", self.name(index)) from error
        if not record or (record.get("bytes") is None and not record.get("path")):
            raise BadImageError("the row has no image", self.name(index))
        return read_image(record["path"] if record.get("bytes") is None else record["bytes"], min_side)


def open_hugging_face(spec: str, split: str, val_share: float, seed: int) -> HuggingFaceSource:
    """``NAME`` or a directory (``save_to_disk``, parquet or image files), each with or without ``:SPLIT``."""
    if not spec:
        raise ValueError("hf: needs the name of a dataset or a directory, as in hf:NAME:SPLIT; received hf:")
    name, wanted = spec, None
    if ":" in spec and not Path(spec).expanduser().exists():
        name, _, wanted = spec.rpartition(":")
    tables = _load(name)
    labels, rest = _choose(list(tables), wanted, split)
    datasets, features = _datasets(), tables[labels[0]].features
    column = next((name for name, feature in features.items() if isinstance(feature, datasets.Image)), None)
    if column is None:
        raise ValueError(f"no image column in the dataset {name!r}; its columns: {', '.join(features)}")
    undecoded = datasets.Image(decode=False)
    chosen = [tables[label].select_columns([column]).cast_column(column, undecoded) for label in labels]
    table = chosen[0] if len(chosen) == 1 else datasets.concatenate_datasets(chosen)
    return HuggingFaceSource(table, column, "+".join(labels), rest, val_share, seed)


def _choose(labels: list[str], wanted: str | None, split: str) -> tuple[list[str], str]:
    """Which of the dataset's splits to take, and how to split them further."""
    if wanted is not None:
        return [check_name("split of the dataset", wanted, labels)], split
    train = [label for label in folders.TRAIN_FOLDERS if label in labels][:1]
    val = [label for label in folders.VAL_FOLDERS if label in labels][:1]
    if split == "all" or not train:
        return labels, split
    return (train if split == "train" else val, "all") if val else (train, split)


def _load(name: str) -> dict[str, Any]:
    datasets = _datasets()
    folder = Path(name).expanduser()
    if not folder.is_dir() and name.startswith(("/", ".", "~")):
        raise ValueError(f"no such directory: {folder}")
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
        else:
            old = int(datasets.__version__.split(".")[0]) < 4  # from 4 on, no dataset brings code of its own
            options = {"trust_remote_code": False} if old else {}
            loaded = datasets.load_dataset(str(folder) if folder.is_dir() else name, **options)
    except Exception as error:  # hub, network, builder and Arrow each raise their own
        raise ValueError(f"cannot load the Hugging Face dataset {name!r}: {reason_of(error)}") from error
    return dict(loaded) if isinstance(loaded, dict) else {"all": loaded}


def _datasets() -> Any:
    return needed("datasets", "hf: needs the datasets package", "datasets")


LISTS = (".txt", ".lst")
KINDS = "a folder, a .txt or .lst list, an image, .tar shards (also as name-{000..099}.tar) or hf:NAME[:SPLIT]"


class ImageSource(Protocol):
    """Images that can be counted, named and read in any order."""

    problems: Problems
    """What was found unreadable while opening, as (name, reason)."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A name that no other image of the source has."""

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """uint8 RGB ``(h, w, 3)``, or a BadImageError; ``min_side`` as in ``read_image``."""


def open_source(
    spec: str | os.PathLike[str] | None, split: str = "train", val_share: float = 0.05, seed: int = 0, size: int = 64
) -> ImageSource:
    """Open images by what the user wrote; what cannot be opened is a ValueError before any work starts.

    Args:
        spec: None (embedded photographs), a folder, a ``.txt`` or ``.lst`` list of paths, one image, WebDataset shards
            (a ``.tar``, ``name-{000..099}.tar``, a folder of them), ``hf:NAME[:SPLIT]`` or ``hf:DIRECTORY[:SPLIT]``.
        split: "train", "val", or "all" for a source that is not to be split.
        val_share: share held out by a hash of the names where the source has no splits of its own; 0 for all to train.
        seed: of that hash.
        size: side of the tiles of the embedded photographs; other sources ignore it.
    """
    check_name("split", split, folders.SPLITS)
    if spec is None:
        return EmbeddedSource(split, size)
    text = os.fspath(spec)
    if text.startswith("hf:"):
        return open_hugging_face(text.removeprefix("hf:"), split, val_share, seed)
    if not text:
        raise ValueError(f"the data is named by an empty text; allowed: {KINDS}")
    path = Path(text).expanduser()
    if path.is_dir():
        folder, rest = folders.split_folder(path, split)
        shards = find_shards(folder, rest)
        if shards:
            return ShardSource(shards, rest, val_share, seed)
        return folders.open_folder(path, split, val_share, seed)
    if "{" in text and "}" in text and not path.exists():
        return open_pattern(text, split, val_share, seed)
    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        raise ValueError(f"no such file or folder: {text}; the nearest folder that exists is {nearest}")
    if path.suffix.lower() in LISTS:
        return folders.open_list(path, split, val_share, seed)
    if path.suffix.lower() == ".tar":
        return ShardSource([path], split, val_share, seed)
    if path.name.lower().endswith(COMPRESSED):
        raise ValueError(f"{path} is compressed, so that no image in it can be found by its offset; unpack it to .tar")
    if is_image_name(path.name):
        return folders.FileSource(path.parent, folders.PackedNames([os.fsencode(path.name)]), split, val_share, seed)
    raise ValueError(f"cannot tell what {path} holds; allowed: {KINDS}")


def absolute(text: str | None) -> str | None:
    """The same data, whatever the working directory is."""
    if text is None or text.startswith("hf:"):
        return text
    return str(Path(text).expanduser().absolute())


def same_data(one: str, other: str) -> bool:
    """Whether two names mean the same data, whatever links lead there."""
    if one.startswith("hf:") or other.startswith("hf:"):
        return one == other
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
