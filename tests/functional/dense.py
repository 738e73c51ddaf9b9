"""Kernels over all latents and codes at once, written out as the formulas read."""

import numpy as np
import torch
from torch import Tensor


def dense_weights(x_nd: Tensor, codebook_kd: Tensor, kernel: str, bandwidth: Tensor, gain: float = 1.0) -> Tensor:
    x, c, width = x_nd.double().numpy(), codebook_kd.detach().double().numpy(), float(bandwidth)
    return torch.from_numpy(weights_of_distances(np.square(x[:, None] - c[None]).sum(axis=2), kernel, width, gain))


def weights_of_distances(sq_dist_nk: np.ndarray, kernel: str, bandwidth: float, gain: float = 1.0) -> np.ndarray:
    if kernel == "gaussian":
        return np.exp(-sq_dist_nk / bandwidth)
    if kernel == "softmax":
        powers = np.exp(-(sq_dist_nk - sq_dist_nk.min(axis=1, keepdims=True)) / bandwidth)
        return np.minimum(1, gain * powers / powers.sum(axis=1, keepdims=True))
    raise ValueError(f"no kernel {kernel!r}")
