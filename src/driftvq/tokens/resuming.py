"""Where an interrupted encoding goes on."""

from driftvq.data.images import Pixels
from driftvq.data.sources import ImageSource
from driftvq.tokens.writer import TokenWriter


class Remaining:
    """The images of a source from ``start`` on."""

    def __init__(self, source: ImageSource, start: int) -> None:
        self.start, self.problems = start, source.problems
        self._source = source

    def __len__(self) -> int:
        return len(self._source) - self.start

    def name(self, index: int) -> str:
        """As in the source."""
        return self._source.name(self.start + index)

    def read(self, index: int, min_side: int | None = None) -> Pixels:
        """As in the source."""
        return self._source.read(self.start + index, min_side)


def remaining_images(source: ImageSource, writer: TokenWriter) -> tuple[Remaining, frozenset[str]]:
    """The images after the last one written, and the names that are known to be unreadable.

    A batch may report unreadable images that come after its own, so what is left begins after the last name written.
    """
    skipped = frozenset(writer.skipped_names())
    start = 0
    for written in writer.written_names():
        while start < len(source) and source.name(start) != written and source.name(start) in skipped:
            start += 1
        if start == len(source) or source.name(start) != written:
            found = repr(source.name(start)) if start < len(source) else "no more images"
            raise ValueError(f"the images are not those of {writer.folder}: expected {written!r}, found {found}")
        start += 1
    while start < len(source) and source.name(start) in skipped:
        start += 1
    return Remaining(source, start), skipped
