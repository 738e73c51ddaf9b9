"""The quantizer that a config describes, or an error that says which of its fields is wrong."""

import inspect
from collections.abc import Mapping
from typing import Any

from driftvq.models.config import NO_QUANTIZER, RESERVED, ModelConfig
from driftvq.names import check_name, shortened
from driftvq.quantizers import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.composite import CompositeQuantizer

MAX_PARTS = 1024
"""Quantizers in one: each is built by itself, so their number is time."""

LARGEST_OPTION = {"num_quantizers": MAX_PARTS, "groups": MAX_PARTS, "codebook_dim": 2**16, "width": 2**16}
"""Options that say how much is built; checked before anything is."""


def build_quantizer(config: ModelConfig) -> Quantizer | None:
    """The quantizer of a model for images, or None for a plain autoencoder."""
    if config.quantizer == NO_QUANTIZER:
        return None
    check_name("quantizer", config.quantizer, (*QUANTIZERS, NO_QUANTIZER))
    known = option_names(config.quantizer, config.quantizer_options)
    for name in config.quantizer_options:
        check_name(f"key in quantizer_options for {config.quantizer!r}", name, known)
    _check_sizes(config.quantizer_options)
    try:
        return make_quantizer(
            config.quantizer,
            dim=config.code_dim,
            codebook_size=config.codebook_size,
            channel_first=True,
            **config.quantizer_options,
        )
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"quantizer {config.quantizer!r} cannot be made with code_dim {config.code_dim}, codebook_size "
            f"{config.codebook_size}, quantizer_options {shortened(config.quantizer_options)}: {reason}"
        ) from error


def option_names(name: str, options: Mapping[str, Any]) -> list[str]:
    """What ``quantizer_options`` may hold for a quantizer; for a composite one, also what its inner quantizer takes."""
    cls = QUANTIZERS[name]
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters
        names.update(dict.fromkeys(parameters))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
        if issubclass(cls, CompositeQuantizer):
            inner = options.get("quantizer", parameters["quantizer"].default)
            check_name("quantizer_options['quantizer']", str(inner), QUANTIZERS)
            rest = {option: value for option, value in options.items() if option != "quantizer"}  # it goes no deeper
            names.update(dict.fromkeys(option_names(inner, rest)))
            break
    return [option for option in names if option not in {"self", "options", *RESERVED}]


def _check_sizes(options: Mapping[str, Any]) -> None:
    """Refuse options that ask for more than any model has."""
    parts = 1
    for name, largest in LARGEST_OPTION.items():
        value = options.get(name)
        if isinstance(value, int | float) and value > largest:
            raise ValueError(f"quantizer_options[{name!r}] must be at most {largest:,}, got {shortened(value)}")
        if largest == MAX_PARTS and isinstance(value, int):
            parts *= value
    if parts > MAX_PARTS:
        raise ValueError(f"num_quantizers × groups must be at most {MAX_PARTS:,}, got {parts:,}")
