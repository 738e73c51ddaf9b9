"""Latents that are NaN, infinite or too large: refused at once where that costs nothing, else with the next call.

Either way, those that are not finite move no code: a call in training leaves them out on their device, as a mask would.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

AT_ONCE = frozenset({"cpu"})  # devices whose numbers Python can see without waiting for them

ANY_SCALE, OWN_SCALE = (0.0, math.inf), (1e-6, 1e6)
"""Magnitudes of latents between which a method can tell them apart: where its codes go where the latents are, and where
the codes have a scale of their own, near 1."""

SAMPLED = 64  # numbers by which the scale of a batch is told


class FiniteCheck:
    """Refuses latents that are not finite, or so large that a sum of their squares would not be.

    On the CPU before anything else happens, and there also those whose scale is none for the method. Elsewhere asking
    would stall the device, so it writes the largest magnitude into the host's memory while Python goes on, and the next
    call raises. A compiled graph never raises.
    """

    def __init__(self) -> None:
        self._largest: tuple[Tensor, np.ndarray[Any, Any]] | None = None

    def __call__(self, x: Tensor, scale: Callable[[], tuple[float, float]]) -> None:
        if torch.compiler.is_compiling() or is_traced(x):
            return
        if is_seen_at_once(x):
            _refuse(x.detach(), scale())
            return
        if self._largest is None:
            pinned = torch.zeros((), dtype=torch.float32, pin_memory=x.device.type == "cuda")
            self._largest = (pinned, pinned.numpy())
        written, read = self._largest
        if not np.isfinite(read):
            written.zero_()
            raise ValueError("latents must be finite, those of an earlier call were not; they moved no code")
        if x.numel():  # not isfinite().all(), which takes five launches; the largest is NaN where any is
            written.copy_(torch.linalg.vector_norm(x.detach(), ord=float("inf")), non_blocking=True)

    def __reduce__(self) -> tuple[type["FiniteCheck"], tuple[()]]:
        return FiniteCheck, ()


def is_seen_at_once(x: Tensor) -> bool:
    """Whether Python can refuse these numbers before anything is done with them."""
    return not torch.compiler.is_compiling() and not is_traced(x) and x.device.type in AT_ONCE


def finite_rows(x_nd: Tensor) -> Tensor:
    """Which latents are finite in all dimensions ``(n,)``, without asking the device."""
    # The largest magnitude is NaN where any is, and takes one launch where isfinite().all() takes five.
    largest_n: Tensor = torch.linalg.vector_norm(x_nd.detach(), ord=float("inf"), dim=1)
    return largest_n < torch.inf


def is_traced(x: Tensor) -> bool:
    """Whether these are no numbers but a trace of them."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x) or isinstance(x, torch._subclasses.FakeTensor)


def is_captured(x: Tensor) -> bool:
    """Whether what is done with these numbers becomes a graph that is run again, without Python."""
    if torch.compiler.is_compiling() or is_traced(x):
        return True
    return x.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _refuse(x: Tensor, scale: tuple[float, float]) -> None:
    if type(x) not in (Tensor, nn.Parameter) or x.dtype not in (torch.float32, torch.float64):
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        sound = bool(torch.linalg.vector_norm(x).isfinite())
    else:
        with np.errstate(all="ignore"):  # no operator of torch, and no copy
            values = x.numpy()
            sound = bool(np.isfinite(np.vdot(values, values)))
    if not sound:
        if wrong := int((~x.isfinite()).sum()):
            raise ValueError(f"latents must be finite, got {wrong} NaN or infinite of {x.numel()} values")
        limit = f"in {x.dtype} up to some {math.sqrt(torch.finfo(x.dtype).max / x.numel()):.1g} for {x.numel()} values"
        small = "so small that the sum of their squares is finite"
        raise ValueError(f"latents must be {small}, {limit}; got up to {x.abs().max():.3g}")
    if scale == ANY_SCALE:
        return
    (least, most), flat = scale, x.flatten()
    some = flat[:: max(1, len(flat) // SAMPLED)].abs()
    some = some[some > 0]
    # By the usual magnitude, not the largest: one wild latent is no reason.
    if len(some) and not least <= (usual := float(some.median())) <= most:
        between = f"between {least:.1g} and {most:.1g}, since these codes have a scale of their own"
        raise ValueError(f"latents must have magnitudes {between}, got {usual:.3g}: scale the latents")
