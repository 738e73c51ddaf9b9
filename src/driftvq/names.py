"""Names that a user may mistype."""

from collections.abc import Iterable
from difflib import SequenceMatcher

from driftvq.json_files import SHOWN, shortened


def check_name(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is known; else an error that lists the known ones, nearest first."""
    names = list(known)
    if name not in names:
        near = sorted(names, key=lambda other: -SequenceMatcher(None, name[:SHOWN].lower(), other).ratio())
        raise ValueError(f"unknown {what} {shortened(name)}; known, nearest first: {', '.join(near) or 'none'}")
    return name
