"""driftvq: vector quantization that survives a moving encoder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftvq import functional as functional
    from driftvq.quantizers import (
        EMAVQ,
        ESTIMATORS,
        FSQ,
        LFQ,
        NSVQ,
        PRESETS,
        QUANTIZERS,
        VQ,
        Estimator,
        FactorizedVQ,
        GroupedVQ,
        Gumbel,
        GumbelVQ,
        Modified,
        Quantizer,
        QuantizerOutput,
        ResidualVQ,
        Rotation,
        SimVQ,
        StraightThrough,
        TransVQ,
        make_quantizer,
        register,
    )

__version__ = "0.1.0"

__all__ = [
    "EMAVQ",
    "ESTIMATORS",
    "FSQ",
    "LFQ",
    "NSVQ",
    "PRESETS",
    "QUANTIZERS",
    "VQ",
    "Estimator",
    "FactorizedVQ",
    "GroupedVQ",
    "Gumbel",
    "GumbelVQ",
    "Modified",
    "Quantizer",
    "QuantizerOutput",
    "ResidualVQ",
    "Rotation",
    "SimVQ",
    "StraightThrough",
    "TransVQ",
    "functional",
    "make_quantizer",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that a command line can answer without loading torch."""
    if name == "functional":
        return import_module("driftvq.functional")
    if name in __all__:
        return getattr(import_module("driftvq.quantizers"), name)
    raise AttributeError(f"module 'driftvq' has no attribute {name!r}")
