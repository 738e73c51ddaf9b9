"""Readers of files that anybody may have changed: for as long as one likes, here a few hundred changes each."""

from pathlib import Path

import pytest

from tests.conftest import Trials
from tests.fuzzing import READERS, Reader, fuzz

EXAMPLES = {"tar": 150, "tokens": 100, "config": 80, "records": 30, "images": 150}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.trial(f"changed files: {name}")) for name in READERS]
)
def test_changed_files_are_read_or_refused(name: str, trials: Trials) -> None:
    fuzzed = fuzz(READERS[name], trials.seconds, EXAMPLES[name], trials.seed)
    trials.tried, trials.held = fuzzed.tried, fuzzed.tried - fuzzed.failed
    assert fuzzed.tried >= EXAMPLES[name]
    assert fuzzed.findings == {}


def test_a_reader_that_breaks_is_found() -> None:
    def write(folder: Path) -> None:
        (folder / "x.json").write_text('{"a": [1, 2]}')

    def read(folder: Path, touched: set[str]) -> None:
        if b"1" not in (folder / "x.json").read_bytes():
            raise KeyError("a")

    fuzzed = fuzz(Reader(write, read), examples=100)
    assert 0 < fuzzed.failed < fuzzed.tried
    assert [finding.split(" at ")[0] for finding in fuzzed.findings] == ["KeyError"]
