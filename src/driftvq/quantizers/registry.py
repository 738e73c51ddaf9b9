"""Quantizers by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from driftvq.names import check_name
from driftvq.quantizers.base import Quantizer

QUANTIZERS: dict[str, type[Quantizer]] = {}
"""Every registered quantizer; the contract tests run on each of them."""

PRESETS: dict[str, tuple[str, ...]] = {}
"""Named constructors of each quantizer: the forms of its paper that differ from the default."""

Class = TypeVar("Class", bound=type[Quantizer])


def register(name: str, *presets: str) -> Callable[[Class], Class]:
    """Make a quantizer known under a name, with its named constructors."""

    def add(cls: Class) -> Class:
        QUANTIZERS[name] = cls
        PRESETS[name] = presets
        return cls

    return add


def make_quantizer(name: str, *, preset: str | None = None, **options: Any) -> Quantizer:
    """A quantizer by name, e.g. ``make_quantizer("ns_vq", dim=64, codebook_size=1024, preset="paper")``.

    Args:
        name: one of :data:`QUANTIZERS`.
        preset: one of its named constructors; its defaults when None.
        options: arguments of the constructor.
    """
    check_name("quantizer", name, QUANTIZERS)
    if preset is None:
        return QUANTIZERS[name](**options)
    check_name(f"preset of {name}", preset, PRESETS[name])
    quantizer: Quantizer = getattr(QUANTIZERS[name], preset)(**options)
    return quantizer
