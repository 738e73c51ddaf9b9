"""The recipes of ``recipes.yaml``: every table and figure of the paper, ``driftvq compare``, and collapse."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from driftvq.experiments.design import Condition, Published, Recipe, every
from driftvq.records.comparisons import Point
from driftvq.records.runs import pyyaml


def _recipe(name: str, entry: Mapping[str, Any]) -> Recipe:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    vary, published, conditions = (values.pop(key, None) for key in ("vary", "published", "conditions"))
    given = [(dict(condition), condition.get("methods")) for condition in conditions or ()]
    for settings, _ in given:
        settings.pop("methods", None)
    changes = tuple(Condition(settings, names and tuple(names)) for settings, names in given)
    values["methods"] = tuple(_flat(values["methods"]))
    values["published"] = None if published is None else _published(**published)
    return Recipe(name, conditions=every(**vary) if vary else changes, **values)


def _flat(names: Sequence[Any]) -> Iterator[str]:
    for name in names:
        yield from [name] if isinstance(name, str) else _flat(name)


def _published(
    source: str, setting: str, metrics: list[str], rows: Mapping[str, list[float]], points: Sequence[Point] = (None,)
) -> Published:
    values = {
        (method, point): dict(zip(metrics, numbers[place * len(metrics) :], strict=False))
        for method, numbers in rows.items()
        for place, point in enumerate(points)
    }
    return Published(source, setting, values)


_ENTRIES = pyyaml().safe_load((files(__package__) / "recipes.yaml").read_text(encoding="utf-8"))["recipes"]
RECIPES = {name: _recipe(name, entry) for name, entry in _ENTRIES.items()}  # every recipe
