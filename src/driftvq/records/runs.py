"""The files of a run, and its metrics: one JSON object per line and log event, readable after any crash."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftvq.files import read_records, write_text

CONFIG_FILE, ENVIRONMENT_FILE = "config.yaml", "environment.json"
METRICS_FILE, SKIPPED_FILE = "metrics.jsonl", "skipped.txt"
CHECKPOINTS, MODEL = "checkpoints", "model"
"""Folders."""


def append_record(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Add one line, in one write; a value that is not a finite number becomes null."""
    record = {"step": step} | {name: _finite(value) for name, value in values.items() if name != "step"}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def drop_records_after(path: Path, step: int) -> None:
    """Forget what was logged after a step, and half-written lines, so that a resumed run can log it again."""
    if not path.exists():
        return
    kept = [json.dumps(record) + "\n" for record in read_records(path) if record["step"] <= step]
    write_text(path, "".join(kept))


def _finite(value: Any) -> Any:
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None
