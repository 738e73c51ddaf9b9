"""The metrics of a run: one JSON object per line and log event, readable after any crash."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftvq.files import write_text

METRICS_FILE = "metrics.jsonl"


def append_record(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Add one line, in one write; a value that is not a finite number becomes null."""
    record = {"step": step} | {name: _finite(value) for name, value in values.items() if name != "step"}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """All lines in order; what a crash left half-written is not among them, and no file is no lines."""
    if not path.exists():
        return []
    records = (_parsed(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [record for record in records if record is not None]


def drop_records_after(path: Path, step: int) -> None:
    """Forget what was logged after a step, and half-written lines, so that a resumed run can log it again."""
    if not path.exists():
        return
    kept = [json.dumps(record) + "\n" for record in read_records(path) if record["step"] <= step]
    write_text(path, "".join(kept))


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _finite(value: Any) -> Any:
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None
