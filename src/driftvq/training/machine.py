"""What the machine computes fast: precision and memory layout."""

import torch

from driftvq.training.config import TrainConfig


def pick_accelerator(accelerator: str) -> str:
    """``"cuda"``, ``"mps"`` or ``"cpu"``: where Lightning's choice of accelerator will run."""
    if accelerator in ("cuda", "gpu", "auto") and torch.cuda.is_available():
        return "cuda"
    if accelerator in ("mps", "gpu", "auto") and torch.backends.mps.is_available():
        return "mps"
    return accelerator if accelerator not in ("auto", "gpu") else "cpu"


def pick_precision(config: TrainConfig) -> str:
    """The precision to train in: what the config says, or bf16 where the hardware has instructions for it.

    A CPU without them emulates bf16, and its convolutions take tens of times as long as in float32.
    """
    if config.precision != "auto":
        return config.precision
    device = pick_accelerator(config.accelerator)
    fast = (device == "cuda" and torch.cuda.is_bf16_supported(False)) or (device == "cpu" and _cpu_computes_bf16())
    return "bf16-mixed" if fast else "32-true"


def pick_channels_last(config: TrainConfig) -> bool:
    """Whether images and kernels lie in memory channel by channel within a pixel: faster but on Apple's GPUs."""
    if config.channels_last != "auto":
        return config.channels_last == "on"
    return pick_accelerator(config.accelerator) in ("cuda", "cpu")


def _cpu_computes_bf16() -> bool:
    """Whether the CPU has instructions for bf16 matrix products (AVX-512 BF16 or AMX)."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in names)
