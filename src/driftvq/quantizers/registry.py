"""Quantizers by name."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

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
    if name not in QUANTIZERS:
        raise ValueError(_unknown("quantizer", name, QUANTIZERS))
    if preset is None:
        return QUANTIZERS[name](**options)
    if preset not in PRESETS[name]:
        raise ValueError(_unknown(f"preset of {name}", preset, PRESETS[name]))
    quantizer: Quantizer = getattr(QUANTIZERS[name], preset)(**options)
    return quantizer


def _unknown(what: str, name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}; known: {', '.join(known) or 'none'}{hint}"
