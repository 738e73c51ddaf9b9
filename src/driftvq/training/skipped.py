"""The list of images that could not be read."""

from collections.abc import Iterable
from pathlib import Path

from driftvq.records.runs import SKIPPED_FILE


class SkippedImages:
    """Appends each unreadable image once to ``skipped.txt`` of a run, with the reason.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / SKIPPED_FILE
        self._known = set(self._names())

    def add(self, skipped: Iterable[tuple[str, str]]) -> None:
        """Note images that were left out."""
        fresh = {name: reason for name, reason in skipped if _one_line(name) not in self._known}
        if not fresh:
            return
        self._known.update(map(_one_line, fresh))
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{_one_line(name)}\t{_one_line(reason)}\n" for name, reason in fresh.items())

    def count(self) -> int:
        """How many different images the file lists, those of other processes included."""
        return len(set(self._names()))

    def _names(self) -> list[str]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.partition("\t")[0] for line in lines]


def _one_line(text: str) -> str:
    return " ".join(text.split())
