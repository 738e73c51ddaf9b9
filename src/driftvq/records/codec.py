"""Dataclasses as JSON files: every value is checked against its type as it is read, and errors name file and field."""

import json
import math
import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from driftvq.files import read_object, write_text
from driftvq.names import check_name, shortened

FORMAT = 2  # the version of the files that a comparison is kept in
LARGEST = 1e150  # of a number: its square is finite
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}

Record = TypeVar("Record")


def write_record(path: str | os.PathLike[str], record: Any) -> Path:
    """Write a dataclass, whole or not at all."""
    text = json.dumps({"format": FORMAT, **encode(record)}, indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def read_record(kind: type[Record], path: Path, **not_stored: Any) -> Record:
    """A dataclass from its file; ``not_stored`` are the fields that the file does not have."""
    data = read_object(path)
    found = data.pop("format", None)
    if found != FORMAT:
        raise ValueError(f"{path}: is of format {shortened(found)}; this driftvq reads format {FORMAT}")
    record: Record = _decode_record(kind, data, str(path), not_stored)
    return record


def encode(value: Any) -> Any:
    """A value as JSON holds it: dataclasses are objects, and numbers that are not finite become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: encode(getattr(value, entry.name)) for entry in _stored(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decode(kind: Any, value: Any, where: str) -> Any:
    """What :func:`encode` gave, as the type that it had; a ValueError says where it is something else."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        is_nan = float in arguments and isinstance(value, float) and not math.isfinite(value)
        if type(None) in arguments and (value is None or is_nan):
            return None
        fitting = next((each for each in arguments if _fits(each, value)), None)
        if fitting is not None:
            return decode(fitting, value, where)
    if not _fits(kind, value):
        raise ValueError(f"{where} is {shortened(value)}; allowed: {_words(kind)}")
    if is_dataclass(kind):
        return _decode_record(kind, value, where, {})
    if origin is tuple:
        return tuple(decode(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if origin is dict:
        # Of an object of numbers those that there are: none that is null, or not finite.
        inner = float | None if arguments[1] is float else arguments[1]
        found = {key: decode(inner, each, f"{where}: {key!r}") for key, each in value.items()}
        return {key: each for key, each in found.items() if each is not None or arguments[1] is not float}
    return float(value) if kind is float else value


def _decode_record(kind: Any, data: dict[str, Any], where: str, not_stored: dict[str, Any]) -> Any:
    stored, hints, values = _stored(kind), _hints(kind), dict(not_stored)
    for name in data:
        check_name("field", name, [entry.name for entry in stored], file=where)
    for entry in stored:
        place = f"{where}: {entry.name!r}"
        if entry.name in data:
            values[entry.name] = decode(hints[entry.name], data[entry.name], place)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise ValueError(f"{place} is missing; allowed: {_words(hints[entry.name])}")
    return kind(**values)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value can be of a type; what is in it is not looked at."""
    origin = get_origin(kind)
    if kind is Any or origin is tuple:
        return kind is Any or isinstance(value, list)
    if is_dataclass(kind) or origin is dict:
        return isinstance(value, dict)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return kind in WORDS and isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(kind)))
    if kind is type(None):
        return "null"
    return "a list" if get_origin(kind) is tuple else WORDS.get(kind, "an object")


@cache
def _stored(kind: Any) -> tuple[Field[Any], ...]:
    """The fields that are written: not those with ``stored=False`` in their metadata."""
    return tuple(entry for entry in fields(kind) if entry.metadata.get("stored", True))


_hints = cache(get_type_hints)
