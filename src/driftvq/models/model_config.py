"""What a tokenizer is made of, as plain values: read and written without loading torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from driftvq.names import check_name, positive_int, shortened

NO_QUANTIZER = "none"  # the name of no quantizer: a plain autoencoder
RESERVED = {"dim": "code_dim", "codebook_size": "codebook_size", "channel_first": None}
"""Arguments of a quantizer that the config sets by a field of its own, or that a model fixes."""
LARGEST = {"codebook_size": 2**28, "code_dim": 2**16}
"""What a config may ask for. It may come from anybody, and building what it says costs memory and time."""
MAX_NUMBER, MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 2**53, 1000, 1000, 4
"""Of ``quantizer_options``: the size of a number, the length of a text and of a list, and lists in lists."""


@dataclass(frozen=True)
class ModelConfig:
    """Everything that is needed to build a :class:`driftvq.models.VQVAE`, except its weights.

    Args:
        network: encoder and decoder, one of :data:`driftvq.models.NETWORKS`.
        quantizer: one of :data:`driftvq.QUANTIZERS`, or ``"none"`` for a plain autoencoder.
        codebook_size: number of codes, K.
        code_dim: channels of the latents, D.
        quantizer_options: further arguments of the quantizer, plain values alone so that they can be saved.
        latent_scale: the latents are multiplied by it before the quantizer, the codes divided by it behind it, and the
            quantizer's loss divided by its square: the same model in other units, to see that a quantizer has none.
    """

    network: str = "small"
    quantizer: str = "ns_vq"
    codebook_size: int = 1024
    code_dim: int = 64
    quantizer_options: Mapping[str, Any] = field(default_factory=dict)
    latent_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("network", "quantizer"):
            if not isinstance(text := getattr(self, name), str) or not text:
                raise ValueError(f"{name} must be a name, got {shortened(text)}")
        for name, largest in LARGEST.items():
            if positive_int(name, count := getattr(self, name)) > largest:
                raise ValueError(f"{name} must be at most {largest:,}, got {_number_text(count)}")
        scale = self.latent_scale
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < math.inf:
            raise ValueError(f"latent_scale must be a number larger than 0, got {shortened(scale)}")
        object.__setattr__(self, "quantizer_options", _plain_options(self.quantizer_options))
        if self.quantizer == NO_QUANTIZER and self.quantizer_options:
            raise ValueError(f"quantizer 'none' takes no quantizer_options, got {self.quantizer_options!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, a copy that may be changed."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A config from its fields; unknown ones are refused by name, absent ones have their defaults."""
        if not isinstance(values, Mapping):
            raise ValueError(f"a model config must be a mapping of field names to values, got {type(values).__name__}")
        for name in values:
            check_name("field of the model config", str(name), [entry.name for entry in fields(cls)])
        return cls(**values)


def _plain_options(options: object) -> dict[str, Any]:
    """A copy of the options; only values that JSON gives back as they were."""
    if not isinstance(options, Mapping):
        raise ValueError(f"quantizer_options must be a mapping of names to values, got {shortened(options)}")
    for name in options:
        if not isinstance(name, str):
            raise ValueError(f"quantizer_options must have names for keys, got {shortened(name)}")
        if name in RESERVED:
            instead = "images fix it" if RESERVED[name] is None else f"set the config's {RESERVED[name]}"
            raise ValueError(f"quantizer_options must not contain {name!r}: {instead}")
    return {name: _plain(f"quantizer_options[{shortened(name)}]", value) for name, value in options.items()}


def _plain(name: str, value: object, depth: int = 0) -> Any:
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS or depth == MAX_DEPTH:
            raise ValueError(f"{name} must have at most {MAX_ITEMS:,} items a list and {MAX_DEPTH} lists in lists")
        return [_plain(name, item, depth + 1) for item in value]
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"{name} must have at most {MAX_TEXT:,} characters, got {len(value):,}")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ValueError(f"{name} must lie between -2^53 and 2^53, got {_number_text(value)}")
    finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, bool | int | float | str) and finite):
        return value
    raise ValueError(f"{name} must be a finite number, text, true, false or a list, got {shortened(value)}")


def _number_text(value: int) -> str:
    """A number, which may have more digits than Python writes."""
    return f"{value:,}" if abs(value) < 10**24 else f"one of {value.bit_length():,} bits"
