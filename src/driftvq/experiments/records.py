"""The files of a comparison that the engine and its cells share."""

import json
from pathlib import Path
from typing import Any

from driftvq.files import read_object, write_text

COMPARISON_FILE, CELL_FILE, LOG_FILE = "comparison.json", "cell.json", "log.txt"
CELLS, ORIGINALS, RECONSTRUCTIONS, TRAINING = "cells", "originals", "reconstructions", "training"
"""Folders; ``training`` is in a cell as long as its training is not finished."""
FORMAT = 1


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write an object, whole or not at all."""
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def update_cell(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change what ``cell.json`` says, and return all of it."""
    record = {**read_object(folder / CELL_FILE), **changes}
    write_json(folder / CELL_FILE, record)
    return record
