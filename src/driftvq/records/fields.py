"""Values of a JSON file, checked as they are taken; an error names the file, the field, and what was found."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftvq.files import read_object
from driftvq.names import shortened

FORMAT = 1
"""The version of the files that a comparison is kept in."""

_REQUIRED: Any = object()


class Fields:
    """A JSON object of a file.

    Args:
        data: the object.
        where: the file, and the place in it, for errors.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A string."""
        return str(self._take(key, default, lambda value: isinstance(value, str), "text"))

    def number(self, key: str) -> float | None:
        """A finite number; None if there is none, or if it is not finite."""
        value = self._take(key, None, lambda value: value is None or is_number(value), "a number or null")
        return None if value is None or not math.isfinite(value) else float(value)

    def whole(self, key: str, default: int | None = _REQUIRED) -> Any:
        """A whole number."""
        allowed = "a whole number" if default is not None else "a whole number or null"
        return self._take(key, default, lambda value: is_whole(value) or value is default, allowed)

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(self._take(key, _REQUIRED, lambda v: is_list(v, is_whole), "a list of whole numbers"))

    def texts(self, key: str, default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._take(key, default, lambda v: is_list(v, lambda x: isinstance(x, str)), "a list of texts"))

    def point(self, key: str) -> Any:
        """A place in a sweep: a number, a text, or null."""
        return self._take(key, None, is_point, "a number, a text or null")

    def points(self, key: str) -> tuple[Any, ...]:
        """The places of a sweep."""
        return tuple(self._take(key, _REQUIRED, lambda v: is_list(v, is_point), "a list of numbers or texts"))

    def mapping(self, key: str) -> dict[str, Any]:
        """An object; an empty one if there is none."""
        return dict(self._take(key, {}, lambda v: v is None or isinstance(v, dict), "an object") or {})

    def numbers(self, key: str) -> dict[str, float]:
        """An object of numbers, of which the finite ones count."""
        values = Fields(self.mapping(key), f"{self.where}: {key!r}")
        found = {name: values.number(name) for name in values.data}
        return {name: value for name, value in found.items() if value is not None}

    def objects(self, key: str) -> "list[Fields]":
        """A list of objects."""
        found = self._take(key, _REQUIRED, lambda v: is_list(v, lambda x: isinstance(x, dict)), "a list of objects")
        return [Fields(each, f"{self.where}: {key!r}[{i}]") for i, each in enumerate(found)]

    def optional(self, key: str) -> "Fields | None":
        """An object, or None."""
        found = self._take(key, None, lambda v: v is None or isinstance(v, dict), "an object or null")
        return None if found is None else Fields(found, f"{self.where}: {key!r}")

    def choice(self, key: str, known: Sequence[str]) -> str:
        """One of the known words."""
        return str(self._take(key, _REQUIRED, lambda v: isinstance(v, str) and v in known, " or ".join(known)))

    def _take(self, key: str, default: Any, fits: Any, allowed: str) -> Any:
        value = self.data.get(key, default)
        if value is _REQUIRED:
            raise ValueError(f"{self.where}: {key!r} is missing; allowed: {allowed}")
        if not fits(value):
            raise ValueError(f"{self.where}: {key!r} is {shortened(value)}; allowed: {allowed}")
        return value


def read_fields(path: Path) -> Fields:
    """The object in a JSON file of this version."""
    data = read_object(path)
    if data.get("format") != FORMAT:
        raise ValueError(f"{path}: is of format {shortened(data.get('format'))}; this driftvq reads format {FORMAT}")
    return Fields(data, str(path))


def is_number(value: Any) -> bool:
    """Whether a value is a number, true and false not counted."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_point(value: Any) -> bool:
    """Whether a value can be a place in a sweep."""
    return value is None or isinstance(value, str) or (is_number(value) and math.isfinite(value))


def is_list(value: Any, fits: Any) -> bool:
    """Whether a value is a list of fitting elements."""
    return isinstance(value, list | tuple) and all(fits(each) for each in value)


def finite(value: Any) -> Any:
    """A value that JSON can hold: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
