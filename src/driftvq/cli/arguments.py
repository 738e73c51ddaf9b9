"""What the subcommands share: how they speak, and the values that they accept."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from driftvq.records.runs import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, MODEL


def say(line: str) -> None:
    """Progress and errors go to stderr, results to stdout."""
    sys.stderr.write(line + "\n")


def whole(least: int) -> Callable[[str], int]:
    """Parse a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


def find_run(model: str) -> Path | None:
    """The folder of a run, if the model is given as one or as the ``model`` in it."""
    path = Path(model)
    for folder in (path, path.parent) if path.name == MODEL else (path,):
        if any((folder / name).exists() for name in (METRICS_FILE, CONFIG_FILE, CHECKPOINTS)):
            return folder
    return None
