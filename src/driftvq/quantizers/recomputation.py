"""Activation checkpointing: a forward pass that the backward pass runs again sees what the first run saw.

``torch.utils.checkpoint`` drops what a forward pass computed and calls it again when its gradient is asked for. By then
the codebook has learned from the step. So the second run learns nothing, and uses the codes of the first.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_CALLS = 4  # training calls of one quantizer that may wait for their gradients at the same time
SAMPLED = 64  # numbers of the latents by which a call is recognised
SAME_LATENTS = 0.05  # by how much these may differ, computed a second time, as a share of the largest


def recomputing() -> bool:
    """Whether a backward pass that is running asks for this forward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def advance_(step: Tensor) -> None:
    """Count a training step; in a compiled graph, refuse to count one again."""
    if torch.compiler.is_compiling():
        _advance_op(step)
    else:
        step += 1


@torch.library.custom_op("driftvq::advance", mutates_args=("step",))
def _advance_op(step: Tensor) -> None:
    if recomputing():
        why = "activation checkpointing runs a compiled quantizer a second time, which it cannot know"
        raise RuntimeError(f"{why}: compile the model that checkpoints, not the part inside the checkpoint")
    step += 1


_advance_op.register_fake(lambda step: None)

Place = tuple[nn.Module, str]


@dataclass
class Call:
    """What a training call saw."""

    fingerprint: Tensor  # of its latents
    tensors: dict[Place, tuple[object, Tensor]]  # those that learning changes, each with a state that changes with it
    counts: dict[Place, int | None]  # what Python counted
    found: Any = None  # what the second run takes as it is
    recalled: bool = False


class Past:
    """The latest training calls that may be recomputed, a few at most; levels that share a quantizer make one each."""

    def __init__(self, most: int = MOST_CALLS) -> None:
        self.most = most
        self.calls: list[Call] = []
        self.forgot = False  # whether a call that may still be recomputed was dropped

    def remember(
        self, x_nd: Tensor, book: nn.Module | None = None, learned: Tensor | None = None, found: Any = None
    ) -> None:
        """After a call that may be recomputed, keep what it found and a codebook as it is: its buffers and ``learned``.

        Torch runs such a call without gradients, or keeps no tensors of it. After one that keeps its tensors nothing is
        likely to be recomputed any more, and all is forgotten.
        """
        if torch.compiler.is_compiling() or (
            torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        ):
            self._drop(len(self.calls))
            return
        done = max((place + 1 for place, call in enumerate(self.calls) if call.recalled), default=0)
        self._drop(max(done, len(self.calls) - self.most + 1))
        before, call = self.calls[-1].tensors if self.calls else {}, Call(_fingerprint(x_nd), {}, {}, found)
        for module in book.modules() if book is not None else ():
            call.counts |= {(module, name): getattr(module, name) for name in getattr(module, "counted_by_python", ())}
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None or (name in module._parameters and tensor is not learned):
                    continue
                state, kept = _state(tensor), before.get((module, name))
                same = kept is not None and state is not None and kept[0] == state
                call.tensors[module, name] = (state, kept[1] if kept is not None and same else tensor.detach().clone())
        self.calls.append(call)

    def _drop(self, first: int) -> None:
        self.forgot = self.forgot or not all(call.recalled for call in self.calls[:first])
        self.calls = self.calls[first:]

    def found(self, x_nd: Tensor) -> Any:
        """What was made of these latents; None: they were not seen."""
        return self._call(x_nd).found if self.calls or self.forgot else None

    @contextmanager
    def recalled(self, x_nd: Tensor) -> Iterator[None]:
        """Within it the codebook is what it was when these latents were quantised."""
        call = self._call(x_nd) if self.calls or self.forgot else Call(x_nd, {}, {})
        # Not in place, since autograd may need what is there now.
        changed = {
            (module, name): _Instead.apply(value, present) if present.requires_grad else value  # type: ignore[no-untyped-call]
            for (module, name), (state, value) in call.tensors.items()
            if _state(present := getattr(module, name)) != state or state is None
        }
        with substituted(call.counts | changed):
            yield

    def _call(self, x_nd: Tensor) -> Call:
        equal = self.calls
        if len(self.calls) != 1 or self.forgot:
            own = _fingerprint(x_nd)
            found = [(each.fingerprint - own).abs().amax() for each in self.calls]
            *away, largest = torch.stack([*found, own.abs().amax()]).tolist()
            nearest = min(away, default=math.inf)
            if nearest > SAME_LATENTS * largest:
                raise RuntimeError(
                    f"activation checkpointing: none of the {len(self.calls)} training calls that wait for their "
                    f"gradients saw these latents; at most {self.most} of a quantizer may wait at the same time, and "
                    "none while it is also called without checkpointing"
                )
            equal = [call for call, distance in zip(self.calls, away, strict=True) if distance == nearest]
        call = next((each for each in reversed(equal) if not each.recalled), equal[-1])
        call.recalled = True
        return call

    def __reduce__(self) -> tuple[Any, ...]:
        return Past, (self.most,)  # a copy has no calls that wait


@contextmanager
def substituted(tensors: Mapping[Place, Any]) -> Iterator[None]:
    """Within it these tensors stand in the place of a module's parameters and buffers, or of other attributes."""
    before = {(module, name): module.__dict__[name] for module, name in tensors if name in module.__dict__}
    try:
        for (module, name), tensor in tensors.items():
            module.__dict__[name] = tensor  # found before what torch has registered by that name
        yield
    finally:
        for module, name in tensors:
            module.__dict__.pop(name, None)
        for (module, name), tensor in before.items():
            module.__dict__[name] = tensor


class _Instead(torch.autograd.Function):
    """A value that is used instead of a parameter, which receives the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, parameter: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def _state(tensor: Tensor) -> object:
    """Changes with a tensor; None where that cannot be told."""
    return None if tensor.is_inference() else (id(tensor), tensor._version)


def _fingerprint(x_nd: Tensor) -> Tensor:
    """Numbers from all over the latents."""
    flat = x_nd.detach().flatten()
    some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to(torch.promote_types(x_nd.dtype, torch.float32))
    return F.pad(some, (0, SAMPLED - len(some))).clone()
