"""Where the image of a name goes: always below the output folder, never onto another image."""

import hashlib
from pathlib import Path

MAX_BYTES = 200
"""A file name may have 255 bytes nearly everywhere; some are kept for a temporary name beside it."""


def safe_parts(name: str) -> list[str]:
    """The folders and the file of a name, without those that lead elsewhere (``/``, ``..``).

    >>> safe_parts("../../a/./b.jpg")
    ['a', 'b.jpg']
    """
    parts = [_safe(part) for part in name.split("/")]
    return [part for part in parts if part] or ["image"]


def place_image(root: Path, name: str, suffixes: frozenset[str]) -> Path:
    """A new path below ``root`` for the PNG of an image, whose folder exists afterwards.

    ``a/b.jpg`` goes to ``a/b.png``. If that is taken, it goes to ``a/b.jpg.png``, then ``a/b.jpg.2.png``, and so on, so
    the same names in the same order always get the same files.

    Args:
        root: folder that nobody else writes to.
        name: of the image.
        suffixes: endings that ``.png`` replaces; it is added to others.
    """
    *folders, file = safe_parts(name)
    folder = root
    for part in folders:
        folder = _free_folder(folder, part)
    dot = file.rfind(".")
    stem = file[:dot] if dot > 0 and file[dot:].lower() in suffixes else file
    path, number = folder / f"{stem}.png", 1
    while path.exists():
        path = folder / (f"{file}.png" if number == 1 else f"{file}.{number}.png")
        number += 1
    return path


def _free_folder(parent: Path, name: str) -> Path:
    """A subfolder of this name; with underscores added while an image has it."""
    folder = parent / name
    while folder.exists() and not folder.is_dir():
        folder = folder.with_name(folder.name + "_")
    folder.mkdir(exist_ok=True)
    return folder


def _safe(part: str) -> str:
    """A file name that every system accepts: no control characters, none that Windows reserves, not too long."""
    text = part.encode("utf-8", "replace").decode()
    text = "".join("_" if ord(char) < 32 or char in '<>:"|?*\\\x7f' else char for char in text).strip(" ").rstrip(". ")
    if len(text.encode()) > MAX_BYTES:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        ending = text[-10:] if "." in text[-10:] else ""
        text = text.encode()[: MAX_BYTES - 40].decode("utf-8", "ignore") + "~" + digest + ending
    return text
