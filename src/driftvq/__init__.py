"""driftvq: vector quantization that survives a moving encoder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftvq import functional as functional
    from driftvq.drift_meter import DriftMeter as DriftMeter
    from driftvq.models import VQVAE as VQVAE
    from driftvq.models import ModelConfig as ModelConfig
    from driftvq.quantizers import *  # noqa: F403 - its list is the one place for a quantizer's name
    from driftvq.quantizers.adapters import as_llamagen as as_llamagen
    from driftvq.quantizers.adapters import as_open_magvit2 as as_open_magvit2
    from driftvq.quantizers.adapters import as_simvq as as_simvq
    from driftvq.quantizers.adapters import as_taming as as_taming
    from driftvq.quantizers.adapters import from_taming as from_taming
    from driftvq.quantizers.adapters import from_vector_quantize_pytorch as from_vector_quantize_pytorch
    from driftvq.quantizers.codec_adapters import as_dac as as_dac
    from driftvq.quantizers.codec_adapters import as_encodec as as_encodec
    from driftvq.quantizers.codec_adapters import as_mimi as as_mimi

__version__ = "0.1.0"

_MODULES = {
    **dict.fromkeys(("as_llamagen", "as_open_magvit2", "as_simvq", "as_taming"), "driftvq.quantizers.adapters"),
    **dict.fromkeys(("as_dac", "as_encodec", "as_mimi"), "driftvq.quantizers.codec_adapters"),
    **dict.fromkeys(("from_taming", "from_vector_quantize_pytorch"), "driftvq.quantizers.adapters"),
    **dict.fromkeys(("make_quantizer", "register"), "driftvq.quantizers"),
    **dict.fromkeys(("VQVAE", "ModelConfig"), "driftvq.models"),
    "DriftMeter": "driftvq.drift_meter",
}
"""Where the names live; those that are not here and begin with a capital are in ``driftvq.quantizers``."""


def __getattr__(name: str) -> Any:
    """Import on first use, so that a command line can answer without loading torch."""
    if name == "functional":
        return import_module("driftvq.functional")
    if name == "__all__":
        return _names()
    module = _MODULES.get(name, "driftvq.quantizers" if name[:1].isupper() else None)
    if module is not None:
        found = import_module(module)
        if name in _MODULES or name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module 'driftvq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_names()]


def _names() -> list[str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    names = {*_MODULES, "functional", *import_module("driftvq.quantizers").__all__}
    return sorted(names, key=lambda name: (not (name.isupper() and len(name) > 1), not name[0].isupper(), name))
