"""What the subcommands share: how they speak, and the values that they accept."""

import argparse
import sys
from collections.abc import Callable


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
