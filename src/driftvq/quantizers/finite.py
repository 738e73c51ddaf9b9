"""Latents that are NaN or infinite: refused at once where that costs nothing, else with the next call.

Whichever it is, such latents move no code: where Python cannot see them at once, a call in training leaves them out on
the device that they are on, as a mask would.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

AT_ONCE = {"cpu"}
"""Devices whose numbers Python can see without waiting for them."""


class FiniteCheck:
    """Refuses latents that are not finite.

    On the CPU before anything else happens. Elsewhere asking would stall the device, so it writes the largest magnitude
    into the host's memory while Python goes on, and the next call raises. A compiled graph never raises.
    """

    def __init__(self) -> None:
        self._largest: tuple[Tensor, np.ndarray[Any, Any]] | None = None

    def __call__(self, x: Tensor) -> None:
        if torch.compiler.is_compiling() or is_traced(x):
            return
        if is_seen_at_once(x):
            _refuse(x)
            return
        if self._largest is None:
            pinned = torch.zeros((), pin_memory=x.device.type == "cuda")
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


def _refuse(x: Tensor) -> None:
    x = x.detach()
    if type(x) in (Tensor, nn.Parameter) and x.dtype in (torch.float32, torch.float64):
        with np.errstate(all="ignore"):
            if np.isfinite(x.numpy().sum()):  # no operator of torch, and no copy
                return
    finite = x.isfinite()
    if not finite.all():
        raise ValueError(f"latents must be finite, got {int((~finite).sum())} NaN or infinite of {x.numel()} values")
