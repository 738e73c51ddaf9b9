"""Names of a package that are imported on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``, so that importing the package does not load what few of its users need.

    Args:
        package: its name.
        modules: the module of the package in which each name is.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in modules:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
