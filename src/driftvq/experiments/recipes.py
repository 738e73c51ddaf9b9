"""The recipes of ``recipes.yaml``: every table and figure of the paper, ``driftvq compare``, and collapse."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from driftvq.experiments.design import Condition, Published, Recipe, every
from driftvq.records.comparisons import Point
from driftvq.records.runs import pyyaml


def _recipe(
    name: str,
    methods: Sequence[Any],
    vary: Mapping[str, Sequence[Any]] | None = None,
    conditions: Sequence[Mapping[str, Any]] = (),
    published: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Recipe:
    """A recipe as its entry describes it."""
    given = [dict(condition) for condition in conditions]
    only = [condition.pop("methods", None) for condition in given]
    changes = tuple(Condition(own, names and tuple(names)) for own, names in zip(given, only, strict=True))
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Recipe(
        name=name,
        methods=tuple(_flat(methods)),
        conditions=every(**vary) if vary else changes,
        published=None if published is None else _published(**published),
        **values,
    )


def _flat(names: Sequence[Any]) -> Iterator[str]:
    for name in names:
        yield from [name] if isinstance(name, str) else _flat(name)


def _published(
    source: str,
    setting: str,
    metrics: Sequence[str],
    rows: Mapping[str, Sequence[float]],
    points: Sequence[Point] = (None,),
) -> Published:
    values = {
        (method, point): dict(zip(metrics, numbers[place * len(metrics) :], strict=False))
        for method, numbers in rows.items()
        for place, point in enumerate(points)
    }
    return Published(source, setting, values)


_ENTRIES = pyyaml().safe_load((files(__package__) / "recipes.yaml").read_text(encoding="utf-8"))["recipes"]
RECIPES = {name: _recipe(name, **entry) for name, entry in _ENTRIES.items()}  # every recipe
