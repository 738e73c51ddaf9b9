"""JSON from files that someone else may have written, or that a crash cut off."""

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from driftvq.files import open_regular

MAX_BYTES, MAX_LINE_BYTES = 1 << 28, 1 << 24
"""Of a file that is read at once, and of a line: many times what is ever written, and no more than memory holds."""

SHOWN = 80
"""Characters of a wrong value that an error shows."""


def read_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is larger than ``max_bytes``, or holds something else; the message names it.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"{path} has {size} bytes; allowed: at most {max_bytes}")
        content = file.read()
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {shortened(found)}; allowed: an object")
    return found


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file with one per line, in its order; no file has none."""
    if not path.is_file():
        return []
    with open_regular(path) as file:
        return records_of(line.decode(errors="replace") for line in iter(partial(file.readline, MAX_LINE_BYTES), b""))


def records_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The lines that are an object with a ``step``; what a crash or a cut left half-written is not among them."""
    found = map(_parsed, lines)
    return [record for record in found if isinstance(record, dict) and isinstance(record.get("step"), int)]


def shortened(value: Any) -> str:
    """A value as text for an error."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists without end
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def shortened_text(text: str, most: int = 4 * SHOWN) -> str:
    """One line of a text, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
