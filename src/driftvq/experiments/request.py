"""What a user asked for, as plain values: kept with the results, so that an interrupted comparison can go on."""

import shlex
from dataclasses import dataclass, fields

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
SETTINGS = ("data", "val_data", "code_dim", "batch_size", "size", "steps")
"""Those that are settings of every training, as they stand."""


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
