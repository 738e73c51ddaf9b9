"""driftvq: vector quantization that survives a moving encoder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftvq import functional as functional
    from driftvq.drift_meter import DriftMeter
    from driftvq.models import VQVAE, ModelConfig
    from driftvq.quantizers import (
        BSQ,
        CVQ,
        EMAVQ,
        ESTIMATORS,
        FSQ,
        IBQ,
        LFQ,
        NSVQ,
        QUANTIZERS,
        VQ,
        BridgeVQ,
        CosineEMAVQ,
        Details,
        Directional,
        DiVeQ,
        Estimator,
        FactorizedVQ,
        GroupedVQ,
        Gumbel,
        GumbelVQ,
        LossTerms,
        Modified,
        MultiScaleVQ,
        NSVQDeltaE,
        NSVQPaper,
        NSVQPublished,
        NSVQSequel,
        OptVQ,
        Quantizer,
        QuantizerOutput,
        ResidualVQ,
        Rotation,
        Sampled,
        SFDiVeQ,
        SimVQ,
        SpaceFilling,
        StraightThrough,
        TransVQ,
        TransVQPaper,
        TransVQPublished,
        WassersteinVQ,
        make_quantizer,
        register,
    )
    from driftvq.quantizers.adapters import as_llamagen, as_open_magvit2, as_simvq, as_taming
    from driftvq.quantizers.codec_adapters import as_dac, as_encodec, as_mimi
    from driftvq.quantizers.interop import from_taming, from_vector_quantize_pytorch

__version__ = "0.1.0"

__all__ = [
    "BSQ",
    "CVQ",
    "EMAVQ",
    "ESTIMATORS",
    "FSQ",
    "IBQ",
    "LFQ",
    "NSVQ",
    "QUANTIZERS",
    "VQ",
    "VQVAE",
    "BridgeVQ",
    "CosineEMAVQ",
    "Details",
    "DiVeQ",
    "Directional",
    "DriftMeter",
    "Estimator",
    "FactorizedVQ",
    "GroupedVQ",
    "Gumbel",
    "GumbelVQ",
    "LossTerms",
    "ModelConfig",
    "Modified",
    "MultiScaleVQ",
    "NSVQDeltaE",
    "NSVQPaper",
    "NSVQPublished",
    "NSVQSequel",
    "OptVQ",
    "Quantizer",
    "QuantizerOutput",
    "ResidualVQ",
    "Rotation",
    "SFDiVeQ",
    "Sampled",
    "SimVQ",
    "SpaceFilling",
    "StraightThrough",
    "TransVQ",
    "TransVQPaper",
    "TransVQPublished",
    "WassersteinVQ",
    "as_dac",
    "as_encodec",
    "as_llamagen",
    "as_mimi",
    "as_open_magvit2",
    "as_simvq",
    "as_taming",
    "from_taming",
    "from_vector_quantize_pytorch",
    "functional",
    "make_quantizer",
    "register",
]

_MODULES = {
    **dict.fromkeys(("as_llamagen", "as_open_magvit2", "as_simvq", "as_taming"), "driftvq.quantizers.adapters"),
    **dict.fromkeys(("as_dac", "as_encodec", "as_mimi"), "driftvq.quantizers.codec_adapters"),
    **dict.fromkeys(("from_taming", "from_vector_quantize_pytorch"), "driftvq.quantizers.interop"),
    "DriftMeter": "driftvq.drift_meter",
    **dict.fromkeys(("VQVAE", "ModelConfig"), "driftvq.models"),
}
"""Where the names live that are not in ``driftvq.quantizers``."""


def __getattr__(name: str) -> Any:
    """Import on first use, so that a command line can answer without loading torch."""
    if name == "functional":
        return import_module("driftvq.functional")
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "driftvq.quantizers")), name)
    raise AttributeError(f"module 'driftvq' has no attribute {name!r}")
