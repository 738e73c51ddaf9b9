"""The image files below a folder: every folder once, whatever its links do, and a note of all that is left out."""

import os
from collections.abc import Iterator

from driftvq.data.images import is_image_name

Identity = tuple[int, int]
"""Device and inode: what a folder is, by whatever name."""


class Tree:
    """A search through a folder and those below it; memory is that of the folders' entries on the way down.

    Links are followed. A link to a folder that has a place of its own in the tree is left out, so that no image comes
    twice (and lands in training and validation), circles end, and many links to many links take no longer than one.

    Attributes:
        problems: (name, reason) of what was left out, complete after the search.
    """

    def __init__(self, root: bytes) -> None:
        self.problems: list[tuple[str, str]] = []
        self._root = root
        self._real_root = os.path.realpath(root)
        self._seen: set[Identity] = set()

    def images(self) -> Iterator[bytes]:
        """Names of the image files relative to the folder, sorted folder by folder."""
        waiting = [iter(self._entries(b""))]  # one iterator a level, not one call: trees may be thousands deep
        while waiting:
            entry = next(waiting[-1], None)
            if entry is None:
                waiting.pop()
            elif entry.endswith(b"/"):
                waiting.append(iter(self._entries(entry)))
            else:
                yield entry

    def _entries(self, folder: bytes) -> list[bytes]:
        """Images and folders in a folder (``b"x/"``), sorted; folders end with a slash."""
        path = self._root + b"/" + folder
        try:
            info = os.stat(path)  # noqa: PTH116 (bytes, which need not be text)
            if (info.st_dev, info.st_ino) in self._seen:
                self._note(folder, "a link to a folder that is searched already")
                return []
            self._seen.add((info.st_dev, info.st_ino))
            with os.scandir(path) as entries:
                found = [(entry.name, self._kind(folder, entry)) for entry in entries if entry.name[:1] != b"."]
        except OSError as error:
            self._note(folder, f"cannot be listed: {error.strerror}")
            return []
        return [folder + name + kind for name, kind in sorted(found) if kind is not None]

    def _kind(self, folder: bytes, entry: os.DirEntry[bytes]) -> bytes | None:
        """What to add to a name: a slash for a folder, nothing for an image; None leaves it out."""
        name = folder + entry.name
        try:
            if entry.is_symlink():
                entry.stat()  # raises for a link that leads nowhere, or to itself
            if entry.is_dir():
                reason = self._needless(os.path.realpath(entry.path)) if entry.is_symlink() else None
                if reason is None:
                    return b"/"
                self._note(name, reason)
            elif is_image_name(os.fsdecode(entry.name)):
                if entry.is_file():
                    return b""
                self._note(name, "a pipe or device, not a file")
        except OSError as error:
            self._note(name, f"cannot be followed: {error.strerror}")
        return None

    def _needless(self, target: bytes) -> str | None:
        """Why a link to this folder is not followed: it is reached without links, no part hidden, or holds the root."""
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
