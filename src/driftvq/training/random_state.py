"""The random generators of a process, as tensors and plain values."""

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators."""
    name, keys, position, has_gauss, cached_gaussian = np.random.get_state(legacy=True)  # noqa: NPY002 - the state
    return {
        "python": random.getstate(),
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached_gaussian],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Continue where :func:`random_state` was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002 - the state
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int) -> None:
    """Start all generators from one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what a library may draw from
    torch.manual_seed(seed)
