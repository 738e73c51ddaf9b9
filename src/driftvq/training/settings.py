"""From YAML files and flags to a :class:`TrainConfig`: both know the same fields."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from driftvq.files import write_text
from driftvq.names import check_name, shortened
from driftvq.records.codec import WORDS
from driftvq.records.runs import parse_yaml, pyyaml, read_yaml
from driftvq.training.config import TrainConfig

TITLES = {"data": "images", "record": "what is measured and saved"}  # of sections with another one in the help


def read_settings(path: Path) -> dict[str, Any]:
    """The fields that a YAML file sets, of the right types."""
    found = read_yaml(path)
    try:
        return {name: check_value(name, value) for name, value in found.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write fields as YAML, in the order given."""
    write_text(path, pyyaml().safe_dump(dict(settings), sort_keys=False, allow_unicode=True))


def make_config(*layers: Mapping[str, Any]) -> TrainConfig:
    """The config of several layers of settings, where the later one wins."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, other in (("steps", "epochs"), ("epochs", "steps")):
            if layer.get(name) is not None:
                merged.pop(other, None)
        merged |= layer
    return TrainConfig(**{name: check_value(name, value) for name, value in merged.items()})


def check_value(name: str, value: object) -> Any:
    """The value of a field in its own type; a wrong name or type is an error that names it."""
    kinds = _types()[check_name("setting", name, _types())]
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if (fitting := _fit(kind, value)) is not None:
            return fitting
    wanted = " or ".join(_WORDS.get(kind, "null") for kind in kinds)
    raise ValueError(f"{name} must be {wanted}, got {shortened(value)}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field; a flag that is not given leaves nothing in the namespace."""
    sections = dict.fromkeys(f.metadata["section"] for f in fields(TrainConfig))
    groups = {name: parser.add_argument_group(TITLES.get(name, name)) for name in sections}
    for f in fields(TrainConfig):
        flag = "--" + f.name.replace("_", "-")
        options: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS, "help": _help(f)}
        kind = _types()[f.name][0]
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif kind is dict:
            options |= {"nargs": "+", "action": "extend", "type": _option, "metavar": f.metadata["metavar"]}
        elif kind is tuple:
            options |= {"nargs": 2, "type": partial(_parse, f.name, float), "metavar": ("B1", "B2")}
        else:
            choices = "{" + ",".join(f.metadata.get("choices", ())) + "}"
            plain = f.metadata.get("metavar", {int: "N", float: "X"}.get(kind, "NAME"))
            options |= {"type": partial(_parse, f.name, kind), "metavar": choices if "choices" in f.metadata else plain}
        groups[f.metadata["section"]].add_argument(flag, **options)


def given_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The fields that flags set."""
    given = {name: value for name, value in vars(args).items() if name in _types()}
    return {name: dict(value) if _types()[name] == (dict,) else value for name, value in given.items()}


def parse_scalar(text: str) -> Any:
    """A value as YAML reads it: 3 is a number, true a truth value, rotation a string."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"must be key=value, got {text!r}")
    return key, parse_scalar(value)


@cache
def _types() -> dict[str, tuple[Any, ...]]:
    """Allowed types of each field, None's last."""
    hints = {name: (get_origin(hint), get_args(hint) or (hint,)) for name, hint in get_type_hints(TrainConfig).items()}
    return {name: (origin,) if origin in (dict, tuple) else arguments for name, (origin, arguments) in hints.items()}


_WORDS: dict[Any, str] = {**WORDS, dict: "a mapping of option names to values", tuple: "two numbers"}


def _fit(kind: Any, value: object) -> Any:
    """The value as this type, or None."""
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 5e-4 as text
        except (ValueError, OverflowError):
            return None
    if kind is tuple and isinstance(value, list | tuple) and len(value) == 2:
        pair = tuple(_fit(float, number) for number in value)
        return None if None in pair else pair
    if kind is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return dict(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    return None


def _parse(name: str, kind: Any, text: str) -> Any:
    if kind is int and NoneType not in _types()[name] and str in _types()[name]:
        return int(text) if text.isdecimal() else text
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {_WORDS[kind]}, got {text!r}") from None


def _help(f: Field[Any]) -> str:
    text, default = str(f.metadata["help"]).replace("%", "%%"), f.default
    if default is MISSING or default is None or "default:" in text:
        return text
    if isinstance(default, bool):
        default = "yes" if default else "no"
    return f"{text} (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
