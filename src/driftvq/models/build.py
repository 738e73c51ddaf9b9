"""The quantizer that a config describes, or an error that says which of its fields is wrong."""

import inspect
from collections.abc import Mapping
from typing import Any

from driftvq.models.config import NO_QUANTIZER, RESERVED, ModelConfig
from driftvq.names import check_name
from driftvq.quantizers import QUANTIZERS, Quantizer, make_quantizer
from driftvq.quantizers.composite import CompositeQuantizer


def build_quantizer(config: ModelConfig) -> Quantizer | None:
    """The quantizer of a model for images, or None for a plain autoencoder."""
    if config.quantizer == NO_QUANTIZER:
        return None
    check_name("quantizer", config.quantizer, (*QUANTIZERS, NO_QUANTIZER))
    known = option_names(config.quantizer, config.quantizer_options)
    for name in config.quantizer_options:
        check_name(f"key in quantizer_options for {config.quantizer!r}", name, known)
    try:
        return make_quantizer(
            config.quantizer,
            dim=config.code_dim,
            codebook_size=config.codebook_size,
            channel_first=True,
            **config.quantizer_options,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"quantizer {config.quantizer!r} cannot be made with code_dim {config.code_dim}, codebook_size "
            f"{config.codebook_size}, quantizer_options {config.quantizer_options!r}: {error}"
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
            names.update(dict.fromkeys(option_names(inner, options)))
            break
    return [option for option in names if option not in {"self", "options", *RESERVED}]
