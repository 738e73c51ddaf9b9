"""Sums and gathers over all processes; each is the identity while there is no process group, which may come later."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from driftvq.quantizers.recomputation import substituted

Method = TypeVar("Method", bound=Callable[..., Any])


def is_distributed() -> bool:
    """Whether there is a process group, of however many processes."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Number of processes that take part in a collective now."""
    return dist.get_world_size() if is_distributed() else 1


def sum_over_processes(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor summed over all processes, in one message; all have one dtype. The same bits everywhere."""
    if world_size() == 1:
        return tensors
    joined = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(joined)
    parts = joined.split([tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))


def by_process(value: Tensor) -> Tensor:
    """``(r,)``: this process's scalar at its place, 0 at the others'; summed over processes, those of all."""
    if world_size() == 1:
        return value[None]
    values_r = value.new_zeros(world_size())
    values_r[dist.get_rank()] = value
    return values_r


def mean_over_processes(mean: Tensor, count: Tensor) -> Tensor:
    """The mean over all processes' latents of which each gives its own and their number.

    The gradient is that of its own share times the number of processes, so that averaging the gradients of all
    processes, as DistributedDataParallel does, gives the gradient of the joined mean.
    """
    if world_size() == 1:
        return mean
    total, latents = sum_over_processes(mean.detach() * count, count)
    latents = latents.clamp(min=1)
    own = mean * (world_size() * count / latents)
    return total / latents + (own - own.detach())


def from_first_process(tensor: Tensor) -> Tensor:
    """The first process's value of a tensor that has the same shape everywhere."""
    if world_size() == 1:
        return tensor
    tensor = tensor.contiguous().clone()
    dist.broadcast(tensor, src=0)
    return tensor


def gather_rows(x_nd: Tensor) -> Tensor:
    """All processes' rows, in the order of the processes; the one call here that waits for the device."""
    if world_size() == 1:
        return x_nd
    (counts_r,) = sum_over_processes(by_process(torch.tensor(len(x_nd), device=x_nd.device)))
    sizes = counts_r.tolist()
    padded = x_nd.new_zeros(max(sizes), x_nd.shape[1])
    padded[: len(x_nd)] = x_nd
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def with_whole_parameters(method: Method) -> Method:
    """Let a module's method that is called outside of ``forward`` see parameters that FSDP has sharded as a whole.

    They are gathered from all processes, which all have to call it.
    """

    @wraps(method)
    def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or world_size() == 1:
            return method(self, *args, **kwargs)
        sharded = {
            (module, name): gathered()
            for module in self.modules()
            for name, parameter in module._parameters.items()
            if name not in module.__dict__  # gathered already, by a method that calls this one
            and (gathered := getattr(parameter, "full_tensor", None)) is not None
        }
        with substituted(sharded):
            return method(self, *args, **kwargs)

    return cast("Method", call)


def is_sharded(parameter: nn.Parameter) -> bool:
    """Whether FSDP has sharded a parameter, also while ``forward`` sees it whole.

    Torch has no public way to tell; where this version's private one is not found, the answer is False.
    """
    if not dist.is_available():
        return False
    from torch.distributed import _composable_state

    states = [ref() for ref in getattr(_composable_state, "_module_state_mapping", {}).values()]
    one = [(getattr(state, "_fsdp_param_group", None),) for state in states]  # where there are no several of a module
    groups = [g for state, own in zip(states, one, strict=True) for g in getattr(state, "_fsdp_param_groups", own)]
    sharded = [own for group in groups for own in getattr(group, "fsdp_params", ())]
    return any(getattr(own, "_unsharded_param", None) is parameter for own in sharded)
