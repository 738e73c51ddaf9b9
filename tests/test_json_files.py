"""Reading JSON that may be damaged."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftvq.json_files import read_object, read_records, records_of, shortened
from tests.limits import ends_within

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, "ü"]}', encoding="utf-8")
    assert read_object(path) == {"a": [1, "ü"]}
    assert read_object(path, max_bytes=path.stat().st_size) == {"a": [1, "ü"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"a": 1', "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b'{"a": ' * 100_000, "is not valid JSON"),
        (b"[]", r"holds \[\]; allowed: an object"),
        (b"[" + b"1, " * 100 + b"1]", "holds .{79}…; allowed: an object"),
    ],
)
def test_other_content_is_an_error_that_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json {message}"):
        read_object(path)


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"a\.json has 7 bytes; allowed: at most 6"):
        read_object(path, max_bytes=6)


def test_lines_of_a_crash_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = b"[" * 100_000
    torn = b'{"step": 1, "a": 2}\n[1]\n{"a": 1}\n\xff\xfe\n' + deep + b'\n{"step": 2, "a": 3}\n{"step": 3, "a'
    path.write_bytes(torn)
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_files_without_an_end_are_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    os.truncate(path, 1 << 28)  # sparse: nothing on the disk
    with path.open("ab") as file:
        file.write(b'\n{"step": 2}\n')
    tracemalloc.start()
    assert [record["step"] for record in read_records(path)] == [1, 2]
    assert tracemalloc.get_traced_memory()[1] < 1 << 27
    tracemalloc.stop()
    with pytest.raises(ValueError, match=r"metrics\.jsonl has 268435469 bytes; allowed: at most 268435456"):
        read_object(path)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with ends_within(20), pytest.raises(OSError, match="a pipe or device, not a file"):
        read_object(tmp_path / "a.json")
    assert read_records(tmp_path / "a.json") == []


def test_numbers_and_lists_that_cannot_be_shown() -> None:
    assert shortened(10**5000) == "a int too large to show"


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none.jsonl") == []


@given(st.lists(VALUES), st.integers(0, 40))
def test_records_are_the_whole_lines_with_a_step(values: list[object], cut: int) -> None:
    text = "".join(json.dumps(value) + "\n" for value in [{"step": 1}, *values, {"step": 2, "a": values}])
    expected = [value for value in values if isinstance(value, dict) and isinstance(value.get("step"), int)]
    lines = text.splitlines()
    assert records_of(lines) == [{"step": 1}, *expected, {"step": 2, "a": values}]
    lines[-1] = lines[-1][: min(cut, len(lines[-1]) - 1)]
    assert records_of(lines) == [{"step": 1}, *expected]


def test_short_values_are_shown_whole() -> None:
    assert shortened("a" * 78) == repr("a" * 78)
    assert len(shortened("a" * 79)) == 80
