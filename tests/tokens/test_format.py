"""Token folders that were changed by anybody: one error that names the file, or tokens that agree with each other."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.tokens import TokenModel, TokenWriter, open_tokens
from tests.limits import ends_within

FILES = ("index.json", "tokens.npy", "sizes.npy", "batches.npy", "names.jsonl", "offsets.npy", "shapes.npy")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of two sizes."""
    folder = tmp_path_factory.mktemp("sound") / "tokens"
    with TokenWriter(folder, TokenModel("ab" * 32, 1000, 4, 3)) as writer:
        for side in (1, 2):
            writer.write(np.full((2, side, 2, 3), side), ["a.jpg", "b.jpg"], (4 * side, 8))
        writer.finish()
    return folder


def read_all(folder: Path) -> int:
    tokens = open_tokens(folder)
    names, arrays = list(tokens.names()), list(tokens)
    assert sum(len(rows) for rows in tokens.batches()) == len(names) == len(arrays)
    return sum(int(array.size) for array in arrays)


def refused(folder: Path) -> str:
    with ends_within(20), pytest.raises(ValueError, match=str(folder)) as caught:
        read_all(folder)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


FINDINGS = {
    "a zip": ("tokens.npy", b"PK\x03\x04" + bytes(30), "truncated or not an array"),
    "an open bracket": ("tokens.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((   ", "truncated or not an array"),
    "brackets in brackets": ("sizes.npy", b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "truncated or not an array"),
    "names that are no text": ("names.jsonl", b'"a.jpg"\n"\xce.jpg"\n', "a line is not JSON"),
    "lists in lists": ("names.jsonl", b"[" * 100_000, "a line is not JSON"),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_damage_is_named(what: str, sound: Path, tmp_path: Path) -> None:
    file, content, reason = FINDINGS[what]
    shutil.copytree(sound, tmp_path / "tokens")
    (tmp_path / "tokens" / file).write_bytes(content)
    assert f"{file} is" in (message := refused(tmp_path / "tokens"))
    assert reason in message


@pytest.mark.parametrize(
    ("field", "value"), [("downscale", 2**64), ("n", 10**30), ("batches", 0), ("shape", [2**40] * 3), ("size", [0, 1])]
)
def test_numbers_without_a_bound(field: str, value: object, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "tokens")
    index = json.loads((sound / "index.json").read_text())
    (tmp_path / "tokens" / "index.json").write_text(json.dumps({**index, field: value}))
    refused(tmp_path / "tokens")


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_gone_or_a_pipe(file: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "tokens")
    (tmp_path / "tokens" / file).unlink()
    refused(tmp_path / "tokens")
    os.mkfifo(tmp_path / "tokens" / file)
    refused(tmp_path / "tokens")


def test_a_line_without_an_end_is_not_read_whole(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "tokens")
    os.truncate(tmp_path / "tokens" / "names.jsonl", 1 << 40)  # a sparse file: nothing on the disk
    assert "a line is not JSON" in refused(tmp_path / "tokens")


CHANGES = st.lists(
    st.tuples(st.sampled_from(FILES), st.integers(0, 700), st.binary(max_size=6), st.integers(0, 6)),
    min_size=1,
    max_size=3,
)


@given(CHANGES)
@settings(max_examples=150, deadline=None)
def test_any_change_is_refused_or_harmless(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, bytes, int]]
) -> None:
    folder = tmp_path_factory.mktemp("changed") / "tokens"
    shutil.copytree(sound, folder)
    for file, place, new, removed in changes:
        data = bytearray((folder / file).read_bytes())
        data[place : place + removed] = new
        (folder / file).write_bytes(data)
    problem: ValueError | None = None
    try:
        assert read_all(folder) == 36
    except ValueError as error:
        problem = error
    assert problem is None or (type(problem) is ValueError and str(folder) in str(problem) and "\n" not in str(problem))
