"""What a call asks of a device, counted without one: operators, host reads, bytes and FLOPs."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

NO_LAUNCH = {"detach", "alias", "_unsafe_view", "_reshape_alias", "lift_fresh", "resize_", "set_", "view_as_real"}
"""Operators besides views and allocations that start nothing on a device."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Their result has a shape that depends on data only if they index by a mask."""

WITH_CHECK = {"_linalg_check_errors", "_assert_scalar"}
"""Operators that wait for a value to decide whether to raise."""

PYTHON_READS = ("tolist", "numpy", "__array__", "cpu")
"""Methods that on a tensor of the CPU read memory without an operator."""


@dataclass(frozen=True)
class Launch:
    """One operator that runs on the device."""

    name: str
    bytes: int
    flops: int


@dataclass
class Cost:
    """What a call asks for. Bytes are those of all arguments and results; gathers count their whole table.

    Args:
        launches: the operators that run on the device: all but views and allocations.
        reads: values that Python needs, by what asks for them.
    """

    launches: list[Launch] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)

    @property
    def operators(self) -> int:
        return len(self.launches)

    @property
    def host_reads(self) -> int:
        return sum(self.reads.values())

    @property
    def bytes(self) -> int:
        return sum(launch.bytes for launch in self.launches)

    @property
    def flops(self) -> int:
        return sum(launch.flops for launch in self.launches)

    def seconds(self, launch_seconds: float, bytes_per_second: float, flops_per_second: float) -> float:
        """``Σ max(launch, bytes / bandwidth, FLOPs / peak)``: an estimate; waiting for host reads is not in it."""
        return sum(
            max(launch_seconds, launch.bytes / bytes_per_second, launch.flops / flops_per_second)
            for launch in self.launches
        )


def count(step: Callable[[], object]) -> Cost:
    """The cost of one call; the bodies of custom operators that are written in Python are looked into."""
    mode = _Counting()
    with _python_reads(mode.cost.reads), mode:
        step()
    return mode.cost


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost = Cost()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        custom = OPDEFS.get(operator._schema.name)
        if custom is not None:
            device = next(leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            with self:
                return custom._backend_fns.get(device, custom._init_fn)(*args, **kwargs)
        if operator.namespace == "prim":  # asks a tensor what it is, not what is in it
            return operator(*args, **kwargs)
        if operator.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):  # made of others: count those
            with self:
                parts = operator.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = operator(*args, **kwargs)
        name = operator._schema.name.split("::")[1]
        if _reads_host(operator, name, args, kwargs, result):
            self.cost.reads[name] += 1
        if _tensors((args, kwargs, result)) and not (operator.is_view or "empty" in name or name in NO_LAUNCH):
            self.cost.launches.append(_launch(operator, name, args, kwargs, result))
        return result


def _reads_host(operator: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> bool:
    """Whether Python, or the shape of the result, needs a value that the device computes."""
    if name in WITH_CHECK:
        return True
    if name in INDEXING:
        return any(index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None)
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    if name in ("_to_copy", "copy_"):
        source = args[0] if name == "_to_copy" else args[1]
        return bool(source.device.type != "cpu" and result.device.type == "cpu")
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags))


def _launch(operator: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> Launch:
    read = _tensors((args, {key: value for key, value in kwargs.items() if key != "out"}))
    written = _tensors(result)
    formula = flop_registry.get(operator.overloadpacket)
    if formula is None:
        flops = max((tensor.numel() for tensor in read + written), default=0)
    else:
        flops = formula(*args, **kwargs, out_val=result)
    return Launch(name, sum(map(_size, read)) + sum(map(_size, written)), int(flops))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor's own numbers: what is expanded is read once."""
    distinct = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        distinct *= length if stride else min(length, 1)
    return distinct * tensor.element_size()


@contextmanager
def _python_reads(reads: Counter[str]) -> Iterator[None]:
    """Count methods by which Python reads a tensor past the dispatcher."""
    originals = {name: torch.Tensor.__dict__.get(name) for name in PYTHON_READS}

    def counted(name: str, method: Any) -> Any:
        def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.device.type == "cpu":  # elsewhere the copy is an operator
                reads[name] += 1
            return method(self, *args, **kwargs)

        return read

    for name in PYTHON_READS:
        setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        for name, original in originals.items():
            if original is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
