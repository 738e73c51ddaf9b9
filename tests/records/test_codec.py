import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from driftvq.records.codec import FORMAT, decode, encode, read_record, write_record


@dataclass(frozen=True)
class Inner:
    name: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    place: Path = field(metadata={"stored": False})
    count: int
    kind: Literal["a", "b"]
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    grid: tuple[tuple[float, ...], ...] = ()
    share: float | None = None
    point: int | float | str | None = None
    sure: bool = False
    anything: dict[str, Any] = field(default_factory=dict)


EXAMPLE = Outer(
    Path("here"),
    3,
    "b",
    Inner("x", {"psnr": 1.5}),
    (Inner("y"),),
    ((1.0, 2.5), ()),
    0.25,
    "K 64",
    True,
    {"deep": [1, {"er": None}]},
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write_record(tmp_path / "x.json", EXAMPLE)
    assert read_record(Outer, path, place=Path("here")) == EXAMPLE
    assert "place" not in json.loads(path.read_text())


def test_what_has_a_default_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"format": FORMAT, "count": 1, "kind": "a"}))
    assert read_record(Outer, tmp_path / "x.json", place=Path()) == Outer(Path(), 1, "a")


def test_numbers_that_are_not_finite_are_none() -> None:
    assert encode({"a": math.nan, "b": [math.inf]}) == {"a": None, "b": [None]}
    found = decode(Inner, {"name": "x", "scores": {"a": math.nan, "b": None, "c": 2}}, "f")
    assert found.scores == {"c": 2.0}
    assert decode(float | None, math.inf, "f") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1.5}, "f: 'count' is 1.5; allowed: a whole number"),
        ({"count": True}, "f: 'count' is True; allowed: a whole number"),
        ({"kind": "c"}, "f: 'kind' is 'c'; allowed: a or b"),
        ({"inner": 3}, "f: 'inner' is 3; allowed: an object or null"),
        ({"inner": {}}, "f: 'inner': 'name' is missing; allowed: text"),
        ({"many": [{"name": 1}]}, "f: 'many'[0]: 'name' is 1; allowed: text"),
        ({"many": {}}, "f: 'many' is {}; allowed: a list"),
        ({"grid": [[1, "x"]]}, "f: 'grid'[0][1] is 'x'; allowed: a number"),
        ({"grid": [[math.nan]]}, "f: 'grid'[0][0] is nan; allowed: a number"),
        ({"grid": [[-1e200]]}, "f: 'grid'[0][0] is -1e+200; allowed: a number"),
        ({"point": [1]}, "f: 'point' is [1]; allowed: a whole number or a number or text or null"),
        ({"sure": 1}, "f: 'sure' is 1; allowed: true or false"),
        ({"place": "x"}, "f: unknown field 'place'; known, nearest first: "),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="f: ") as error:
        decode(Outer, {"count": 1, "kind": "a", **changes}, "f")
    assert str(error.value).startswith(message)


def test_another_format_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match=rf"x\.json: is of format 99; this driftvq reads format {FORMAT}"):
        read_record(Outer, tmp_path / "x.json")
