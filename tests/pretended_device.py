"""A device that this machine does not have, to see whether code would run on one.

Its tensors keep their numbers on the CPU, but as on a real device it is an error to combine them with tensors of the
CPU, to ask for float64 (Apple's have none), or to call what Apple's devices do not implement. PyTorch knows one such
device per process: import this in a process of its own.
"""

import re
from pathlib import Path
from typing import Any

import torch
import torchgen
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"
FROM_ANYWHERE = {"copy_", "_to_copy"}
"""Operators that take tensors of two devices."""


def _without_kernel(device: str) -> set[str]:
    """Operators that PyTorch implements for the CPU and not for a device, by its own list of them."""
    listed = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    kernels: dict[str, set[str]] = {}
    for entry in listed.read_text().split("- func: ")[1:]:
        dispatch = re.search(r"\n  dispatch:\n((?:    .*\n?)+)", entry)
        keys = re.findall(r"\w+", " ".join(re.findall(r"^ +(.*?):", dispatch[1], re.MULTILINE)) if dispatch else "")
        generic = [] if dispatch or "structured_delegate" in entry else ["Composite"]
        kernels.setdefault(re.split(r"[.(]", entry)[0], set()).update(keys, generic)
    return {
        name
        for name, keys in kernels.items()
        if "CPU" in keys and device not in keys and not any(key.startswith("Composite") for key in keys)
    }


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class _Generator(torch.Generator):
    """The numbers are on the CPU, and so is what draws them."""

    def __new__(cls, device: torch.device | str = "cpu") -> "_Generator":
        return super().__new__(cls)


_setup_privateuseone_for_python_backend(NAME, _Backend())
DEVICE = torch.device(NAME, 0)
NOT_IMPLEMENTED = _without_kernel("MPS")
torch.Generator = _Generator  # type: ignore[misc]


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the pretended device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, requires_grad: bool = False) -> "DeviceTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )

    def __init__(self, numbers: Tensor, requires_grad: bool = False) -> None:
        self.numbers = numbers

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def __repr__(self) -> str:
        return f"DeviceTensor({self.numbers})"


class PretendedDevice(TorchDispatchMode):
    """Within it tensors can be made on the device."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})


def to_device(x: Tensor, requires_grad: bool = False) -> Tensor:
    return DeviceTensor(x.detach().clone(), requires_grad)


def move_(module: nn.Module) -> None:
    """Put a module on the device."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            moved = nn.Parameter(to_device(parameter), requires_grad=parameter.requires_grad)
            setattr(part, name, moved)
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, to_device(buffer))


def _run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
    if there and operator._schema.name in OPDEFS:  # our own operators: see what is inside
        with PretendedDevice():
            return OPDEFS[operator._schema.name]._init_fn(*args, **kwargs)
    name = operator._schema.name.split("::")[1]
    if there and name not in FROM_ANYWHERE:
        if any(not isinstance(tensor, DeviceTensor) and tensor.ndim > 0 for tensor in tensors):
            raise RuntimeError(f"{name}: expected all tensors to be on one device, but found {DEVICE} and cpu")
        if name in NOT_IMPLEMENTED:
            raise NotImplementedError(f"{name} is not implemented for {DEVICE}")
    wanted = kwargs.get("device")
    result_there = there if wanted is None else torch.device(wanted).type == NAME
    near = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    result = operator(*tree_map(_numbers, args), **tree_map(_numbers, near))
    if operator._schema.is_mutable and name.endswith("_"):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    return tree_map(_placed, result) if result_there else result


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, DeviceTensor) else value


def _placed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float64:
        raise TypeError(f"{DEVICE} has no float64")
    return DeviceTensor(value)
