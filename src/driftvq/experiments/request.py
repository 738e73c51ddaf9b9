"""What a user asked for, as plain values: kept with the results, so that an interrupted comparison can go on."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from driftvq.names import check_name

DEFAULT_SCALE = "laptop"

FLAGS = {
    "scale": "--scale",
    "name": "--name",
    "data": "--data",
    "val_data": "--val-data",
    "methods": "--methods",
    "seeds": "--seeds",
    "codebook_size": "--codebook-size",
    "code_dim": "--code-dim",
    "batch_size": "--batch-size",
    "size": "--size",
    "steps": "--steps",
    "evaluation": "--evaluation-images",
}
"""Fields that a flag sets."""


@dataclass(frozen=True)
class Request:
    """A recipe, its scale, and what shall differ from both; None where nothing does."""

    recipe: str = "compare"
    scale: str = DEFAULT_SCALE
    name: str | None = None
    data: str | None = None
    val_data: str | None = None
    methods: tuple[str, ...] | None = None
    seeds: int | None = None
    codebook_size: tuple[int, ...] | None = None
    code_dim: int | None = None
    batch_size: int | None = None
    size: int | None = None
    steps: int | None = None
    evaluation: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """As :meth:`to_dict` gave it."""
        known = [entry.name for entry in fields(cls)]
        for name in values:
            check_name("field of a comparison's request", str(name), known)
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**kept)

    def command(self) -> str:
        """What to type to repeat it."""
        words = ["driftvq", "compare"] if self.recipe == "compare" else ["driftvq", "reproduce", self.recipe]
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if value is not None:
                words += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
        return shlex.join(words)


def differences(old: Request, new: Request) -> list[str]:
    """Fields that differ, as ``name: old → new``."""
    return [
        f"{entry.name}: {getattr(old, entry.name)!r} → {getattr(new, entry.name)!r}"
        for entry in fields(Request)
        if getattr(old, entry.name) != getattr(new, entry.name)
    ]
