"""Lightning Fabric set up for the machine, and what the processes that train together agree on."""

import os
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from driftvq.machine import pick_accelerator, pick_device
from driftvq.names import reason_of
from driftvq.quantizers.distributed import world_size
from driftvq.training.checkpoints import PlainCheckpointIO
from driftvq.training.config import TrainConfig


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric, which gets what concerns the machine as it is."""
    torch.backends.cudnn.benchmark = True  # images of a run have one size
    asked: dict[str, Any] = {name: getattr(config, name) for name in ("accelerator", "devices", "strategy")}
    precision: Any = pick_precision(config)
    try:
        return Fabric(**asked, num_nodes=config.num_nodes, precision=precision, plugins=PlainCheckpointIO())
    except (RuntimeError, TypeError, ValueError, MisconfigurationException) as error:
        named, here = ", ".join(f"{name}={value!r}" for name, value in asked.items()), pick_device("auto").type
        allowed = "Accelerators here: auto, cpu" + ("" if here == "cpu" else f", gpu, {here}")
        raise ValueError(f"Lightning cannot work with {named}: {reason_of(error)} {allowed}") from error


def pick_precision(config: TrainConfig) -> str:
    """The precision to train in: what the config says, or bf16 where the hardware has instructions for it.

    A CPU without them emulates bf16, and its convolutions take tens of times as long as in float32.
    """
    device = pick_accelerator(config.accelerator)
    if config.precision == "16-mixed" and device == "cpu":
        return "bf16-mixed"  # what Lightning takes instead, since CPUs have no autocast in float16
    if config.precision != "auto":
        return config.precision
    # A CPU's instructions for matrix products are AVX-512 BF16 and AMX.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    on_cpu = device == "cpu" and any(bool(getattr(torch.cpu, name, bool)()) for name in names)
    return "bf16-mixed" if on_cpu or (device == "cuda" and torch.cuda.is_bf16_supported(False)) else "32-true"


def memory_layout(config: TrainConfig) -> torch.memory_format:
    """How images and kernels lie in memory: channel by channel within a pixel is faster but on Apple's GPUs."""
    faster = pick_accelerator(config.accelerator) in ("cuda", "cpu")
    wanted = {"on": True, "off": False, "auto": faster}[config.channels_last]
    return torch.channels_last if wanted else torch.contiguous_format


LAUNCHED = "DRIFTVQ_RUN"  # tells processes that Lightning starts for the other devices which folder the first one chose


def is_first_process() -> bool:
    """Whether this is the process that makes folders and speaks; before Lightning can say."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"))
    return all(rank in (None, "0") for rank in ranks)


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process; all get the same answer."""
    if world_size() == 1:
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


def all_processes(value: Any) -> list[Any]:
    """The plain value of each process, in the order of the processes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values
