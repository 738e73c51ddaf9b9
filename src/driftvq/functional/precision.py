"""Which precisions a device has."""

import torch

FULL_PRECISION = ("cpu", "cuda")
"""Devices that compute in float64, and that have every function of ``torch.linalg``; Apple's do not."""


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 where there is none."""
    return torch.float64 if device.type in FULL_PRECISION else torch.float32
