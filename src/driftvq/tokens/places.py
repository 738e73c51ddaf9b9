"""Where a token folder may be made, and how it gets there in one step."""

import shutil
import tempfile
from pathlib import Path

from driftvq.tokens.index import BATCHES, INDEX, NAMES, OFFSETS, SHAPES, SIZES, SKIPPED, TOKENS, read_index


def partial_folder(out: Path) -> Path:
    """Where a folder is made until it is complete."""
    if not out.name:
        raise ValueError(f"the output must be a folder of its own, got {str(out)!r}")
    return out.with_name(out.name + ".partial")


def check_output(out: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Refuse an output that would destroy something, before any work."""
    partial = partial_folder(out)
    for folder in (out, partial):
        if taken(folder) and not _holds_only_tokens(folder):
            raise ValueError(f"{folder} exists and is not a folder of tokens alone; choose another output")
    if taken(out) and not overwrite:
        raise ValueError(f"{out} exists; --overwrite replaces it")
    if resume and not (partial / INDEX).is_file():
        raise ValueError(f"nothing to resume: there are no interrupted tokens in {partial}")
    if not resume and not overwrite and (partial / INDEX).is_file() and (done := read_index(partial).n):
        raise ValueError(
            f"{partial} holds {done} images of an interrupted run: --resume continues it, --overwrite drops it"
        )


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


def _holds_only_tokens(folder: Path) -> bool:
    """Whether everything in a folder is a file that this module writes, so that it may be replaced."""
    ours = (INDEX, TOKENS, SHAPES, OFFSETS, SIZES, BATCHES, NAMES, SKIPPED)
    return folder.is_dir() and all(path.name in ours or path.name.startswith(f".{INDEX}.") for path in folder.iterdir())
