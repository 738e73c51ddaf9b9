"""Where models are written."""

from collections.abc import Callable
from pathlib import Path

from driftvq.files import replacing


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file that then takes the place of ``path``; after an error nothing is left behind."""
    with replacing(path) as temporary:
        write(temporary)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents; an error if something else has the name."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
