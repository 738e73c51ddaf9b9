"""Quantizers by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from driftvq.names import check_name
from driftvq.quantizers.quantizer import Quantizer

QUANTIZERS: dict[str, type[Quantizer]] = {}
"""Every registered quantizer; the contract tests run on each of them."""

Class = TypeVar("Class", bound=type[Quantizer])


def register(name: str) -> Callable[[Class], Class]:
    """Make a quantizer known under a name."""

    def add(cls: Class) -> Class:
        QUANTIZERS[name] = cls
        return cls

    return add


def make_quantizer(name: str, **options: Any) -> Quantizer:
    """A quantizer by name, e.g. ``make_quantizer("ns_vq", dim=64, codebook_size=1024)``.

    Args:
        name: one of :data:`QUANTIZERS`.
        options: arguments of the constructor.
    """
    return QUANTIZERS[check_name("quantizer", name, QUANTIZERS)](**options)
