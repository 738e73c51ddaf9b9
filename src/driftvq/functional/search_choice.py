"""Which way of searching is the fastest on a GPU: measured once per shape, then remembered."""

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from driftvq.functional.scoring import Scoring

ROUNDS = 3
MARGIN = 0.9
"""Another way must take less than this share of the preferred one's time: a draw is decided alike in every run."""

ShapeClass = tuple[str, int, int, int]
_remembered: dict[ShapeClass, str] = {}


def fastest(ways: Mapping[str, Callable[[Tensor, Scoring], Tensor]], x_nd: Tensor, scoring: Scoring) -> str:
    """Name of the fastest way, measured on the first latents of a shape class; all ways find the same codes.

    The first way is taken unmeasured while a CUDA graph is captured, which allows no measurement; if algorithms are to
    be deterministic, since two ways may round a near-tie differently; and if torch's products may round to
    TensorFloat-32, which is not precise enough to search with.
    """
    preferred = next(iter(ways))
    if len(ways) == 1 or _fixed():
        return preferred
    shape = shape_class(x_nd, len(scoring.weight_kd))
    if shape in _remembered:
        return _remembered[shape]
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return preferred
    best = {name: _milliseconds(partial(way, x_nd, scoring), x_nd.device) for name, way in ways.items()}
    quickest = min(best, key=lambda name: best[name])
    _remembered[shape] = quickest if best[quickest] < MARGIN * best[preferred] else preferred
    return _remembered[shape]


def shape_class(x_nd: Tensor, codes: int) -> ShapeClass:
    """Shapes measured as one: the device, latents and codes up to the next power of two, and the dimension."""
    return str(x_nd.device), (len(x_nd) - 1).bit_length(), (codes - 1).bit_length(), x_nd.shape[1]


def _fixed() -> bool:
    return torch.are_deterministic_algorithms_enabled() or torch.backends.cuda.matmul.allow_tf32


def _milliseconds(call: Callable[[], Tensor], device: torch.device) -> float:
    """The best of a few rounds, after one that compiles and warms up."""
    call()
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best
