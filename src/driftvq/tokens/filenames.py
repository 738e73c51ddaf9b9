"""Where the image of a name goes: always below the output folder, never onto another image."""

import hashlib
from pathlib import Path

MAX_BYTES = 200
"""A file name may have 255 bytes nearly everywhere; some are kept for a temporary name beside it."""

MAX_FOLDER_BYTES = 600
"""Of all folders of a name together; a whole path may have some 1,000 bytes nearly everywhere."""


def safe_parts(name: str) -> list[str]:
    """The folders and the file of a name, without those that lead elsewhere (``/``, ``..``).

    >>> safe_parts("../../a/./b.jpg")
    ['a', 'b.jpg']
    """
    parts = [_safe(part) for part in name.split("/")]
    *folders, file = [part for part in parts if part] or ["image"]
    return [*_shortened(folders), file]


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
    if not (path := folder / f"{stem}.png").exists():
        return path
    if not (path := folder / f"{file}.png").exists():
        return path
    return _first_free(folder, file)


def _first_free(folder: Path, file: str) -> Path:
    """``file.2.png``, ``file.3.png`` and so on; found by halving, since thousands of images may share a name."""

    def path(number: int) -> Path:
        return folder / f"{file}.{number}.png"

    taken, free = 1, 2
    while path(free).exists():
        taken, free = free, 2 * free
    while free - taken > 1:
        middle = (taken + free) // 2
        taken, free = (middle, free) if path(middle).exists() else (taken, middle)
    return path(free)


def _free_folder(parent: Path, name: str) -> Path:
    """A subfolder of this name; with underscores added while an image has it."""
    folder = parent / name
    while folder.exists() and not folder.is_dir():
        folder = folder.with_name(folder.name + "_")
    folder.mkdir(exist_ok=True)
    return folder


def _shortened(folders: list[str]) -> list[str]:
    """The folders, if together they are not too long; else the first ones and a digest of all."""
    if sum(len(part.encode()) + 1 for part in folders) <= MAX_FOLDER_BYTES:
        return folders
    kept, room = [], MAX_FOLDER_BYTES - 40
    for part in folders:
        room -= len(part.encode()) + 1
        if room < 0:
            break
        kept.append(part)
    return [*kept, "~" + hashlib.sha256("/".join(folders).encode()).hexdigest()[:16]]


def _safe(part: str) -> str:
    """A file name that every system accepts: no control characters, none that Windows reserves, not too long."""
    text = part.encode("utf-8", "replace").decode()
    text = "".join("_" if ord(char) < 32 or char in '<>:"|?*\\\x7f' else char for char in text).strip(" ").rstrip(". ")
    if len(text.encode()) > MAX_BYTES:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        ending = text[-10:] if "." in text[-10:] else ""
        text = text.encode()[: MAX_BYTES - 40].decode("utf-8", "ignore") + "~" + digest + ending
    return text
