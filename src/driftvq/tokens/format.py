"""A token folder: ``index.json`` says what the arrays beside it are and which model made them; where it may be made."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from driftvq.files import LOCK_FILE, locked, open_regular, read_object, write_text
from driftvq.names import shortened, shortened_text

ARRAYS = TOKENS, SHAPES, OFFSETS, SIZES, BATCHES = "tokens.npy", "shapes.npy", "offsets.npy", "sizes.npy", "batches.npy"
TEXTS = INDEX, NAMES, SKIPPED = "index.json", "names.jsonl", "skipped.txt"
OURS = (*ARRAYS, *TEXTS, LOCK_FILE)  # a folder of these alone may be replaced
WORK = "encoding"  # for those whom the lock of a partial folder keeps out
FORMAT, FORMAT_VERSION = "driftvq-tokens", 1
LONGEST_LINE = 1 << 24  # bytes of a name and its reason; a tar member's name has at most a sixteenth of it
MAX_INDEX_BYTES, MAX_COUNT, MAX_SIDE = 2**20, 2**62, 2**31 - 1
DTYPES = ("uint8", "uint16", "uint32")


def token_dtype(codebook_size: int) -> str:
    """The smallest unsigned type that holds the indices 0 to ``codebook_size - 1``."""
    for dtype, bits in zip(DTYPES, (8, 16, 32), strict=True):
        if 1 <= codebook_size <= 2**bits:
            return dtype
    raise ValueError(f"codebook_size must lie between 1 and {2**32}, got {codebook_size!r}")


@dataclass(frozen=True)
class TokenModel:
    """What a token folder says of the model that made it."""

    model_hash: str  # see driftvq.models.model_hash
    codebook_size: int
    downscale: int  # pixels a side that one position stands for
    indices_per_position: int = 0  # size of the tokens' last dimension; 0: one index, and no such dimension

    @property
    def dtype(self) -> str:
        """The type of the tokens."""
        return token_dtype(self.codebook_size)


@dataclass
class TokenIndex:
    """The content of ``index.json``."""

    model: TokenModel
    settings: dict[str, Any] = field(default_factory=dict)  # free for the caller; the same when a run is resumed
    n: int = 0  # images so far; in a complete folder, all
    tokens: int = 0
    skipped: int = 0  # images that could not be read
    batches: int = 0  # calls of the model
    shape: tuple[int, ...] | None = None  # of every image's tokens; None when they differ: then tokens.npy is flat
    size: tuple[int, int] | None = None  # height and width of every image; None when they differ
    name_bytes: int = 0  # length of the text file that belongs to n
    skipped_bytes: int = 0  # and to skipped
    complete: bool = False

    def write(self, folder: Path) -> None:
        """Replace the folder's index in one step."""
        values = asdict(self)
        model = values.pop("model")
        content = {"format": FORMAT, "version": FORMAT_VERSION, **model, "dtype": self.model.dtype, **values}
        write_text(folder / INDEX, json.dumps(content, indent=2) + "\n")


def read_index(folder: Path) -> TokenIndex:
    """The checked index of a token folder, complete or not."""
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} is not a token folder: no {INDEX} in it")
    values = read_object(path, MAX_INDEX_BYTES)
    if values.get("format") != FORMAT:
        raise ValueError(f"{path} is not the index of a token folder: its format must be {FORMAT!r}")
    version, ours = values.get("version"), f"this driftvq reads up to {FORMAT_VERSION}: update it"
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"{folder} has tokens of format version {shortened(version)}; {ours}")
    try:
        return _parse(values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {shortened_text(str(error))}") from error


def read_names(path: Path) -> Iterator[str]:
    """The JSON string at the start of each line."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE):
            try:
                name, _ = json.JSONDecoder().raw_decode(line.decode())
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is damaged: a line is not JSON: {line[:80]!r}") from error
            if not isinstance(name, str):
                raise ValueError(f"{path} is damaged: a line is not a name: {line[:80]!r}")
            yield name


def check_same(folder: Path, found: TokenIndex, now: TokenIndex) -> None:
    """Refuse to go on with what another model, or other settings, began."""
    if found.model != now.model:
        both = f"{found.model.model_hash}, this is {now.model.model_hash}"
        raise ValueError(f"{folder} was begun with model {both}; --overwrite starts again")
    old, new = found.settings, now.settings
    if names := [name for name in sorted(old | new) if old.get(name) != new.get(name)]:
        changed = "; ".join(f"{name} was {old.get(name)!r}, is {new.get(name)!r}" for name in names)
        raise ValueError(f"{folder} was begun with other settings: {changed}; --overwrite starts again")


def _parse(values: Mapping[str, Any]) -> TokenIndex:
    model = TokenModel(**{entry.name: values[entry.name] for entry in fields(TokenModel)})
    rest = {entry.name: values[entry.name] for entry in fields(TokenIndex) if entry.name != "model"}
    counts = ("n", "tokens", "skipped", "batches", "name_bytes", "skipped_bytes")
    numbers = [rest[name] for name in counts] + [model.codebook_size, model.downscale, model.indices_per_position]
    if not all(type(number) is int and 0 <= number <= MAX_COUNT for number in numbers) or model.downscale < 1:
        raise ValueError(f"counts must be whole numbers of at most {MAX_COUNT}, got {numbers}")
    if not isinstance(model.model_hash, str) or not isinstance(rest["settings"], dict):
        raise ValueError("model_hash must be text and settings an object")
    if values["dtype"] != model.dtype:
        raise ValueError(f"dtype must be {model.dtype} for {model.codebook_size} codes, got {values['dtype']!r}")
    rest["shape"] = _sides(rest["shape"], 3 if model.indices_per_position else 2)
    rest["size"] = _sides(rest["size"], 2)
    return TokenIndex(model, **rest)


def _sides(value: Any, count: int) -> Any:
    if value is None:
        return None
    if len(value) != count or not all(type(side) is int and 1 <= side <= MAX_SIDE for side in value):
        raise ValueError(f"expected {count} sizes of at least 1 and at most {MAX_SIDE}, got {value!r}")
    return tuple(value)


def partial_folder(out: Path) -> Path:
    """Where a folder is made until it is complete."""
    if not out.name:
        raise ValueError(f"the output must be a folder of its own, got {str(out)!r}")
    return out.with_name(out.name + ".partial")


def finished(out: Path) -> bool:
    """Whether complete tokens are there, and no interrupted ones beside them."""
    return (out / INDEX).is_file() and read_index(out).complete and not taken(partial_folder(out))


def check_output(out: Path, *, overwrite: bool = False, resume: bool = False, held: bool = False) -> None:
    """Refuse an output that would destroy something, before any work; ``held``: the caller has the partial's lock."""
    partial = partial_folder(out)
    for folder in (out, partial):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else [""]
        if taken(folder) and not all(name in OURS or name.startswith(f".{INDEX}.") for name in names):
            raise ValueError(f"{folder} exists and is not a folder of tokens alone; choose another output")
    if not held and (partial / LOCK_FILE).is_file():
        with locked(partial, WORK):
            pass
    if taken(out) and not overwrite:
        raise ValueError(f"{out} exists; --overwrite replaces it")
    if resume and not (partial / INDEX).is_file():
        raise ValueError(f"nothing to resume: there are no interrupted tokens in {partial}")
    if not resume and not overwrite and (partial / INDEX).is_file() and (done := read_index(partial).n):
        ways = "--resume continues it, --overwrite drops it"
        raise ValueError(f"{partial} holds {done} images of an interrupted run: {ways}")


def replace_folder(folder: Path, out: Path) -> None:
    """Put a folder in the place of an older one, which is gone only when the new one is there."""
    if not taken(out):
        if out.is_dir():
            out.rmdir()  # not every system renames over an empty folder
        folder.rename(out)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        out.rename(aside / "old")
        folder.rename(out)
    except OSError:
        if (aside / "old").is_dir():
            (aside / "old").rename(out)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)  # the new one is there, which is what counts


def taken(path: Path) -> bool:
    """Whether something is there that a new folder would replace; an empty folder is not."""
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return path.exists() or path.is_symlink()
