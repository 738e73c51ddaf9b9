"""What nearest codes are, in float64 by NumPy."""

import numpy as np
import torch


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scores_nk(x_nd, codebook_kd, metric):
    """Squared distances, or 1 - cosine similarity, in float64."""
    x, c = x_nd.double().numpy(), codebook_kd.double().numpy()
    if metric == "cosine":
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        c = c / np.maximum(np.linalg.norm(c, axis=1, keepdims=True), 1e-12)
    return np.stack([np.square(row - c).sum(axis=1) for row in x]) if len(x) else np.zeros((0, len(c)))


def assert_nearest(indices_n, x_nd, codebook_kd, metric="l2", rtol=1e-5):
    assert indices_n.dtype == torch.int64
    assert indices_n.shape == (len(x_nd),)
    score_nk = scores_nk(x_nd, codebook_kd, metric)
    if len(score_nk) == 0:
        return
    chosen_n = np.take_along_axis(score_nk, indices_n.numpy()[:, None], axis=1)[:, 0]
    scale = np.median(score_nk)
    np.testing.assert_allclose(chosen_n, score_nk.min(axis=1), rtol=rtol, atol=rtol * scale)


def integer_ties(n, k, d, seed):
    """Small whole numbers, so that distances are exact in float32 whatever the order of summation, and ties abound."""
    generator = torch.Generator().manual_seed(seed)
    codebook = torch.randint(-3, 4, (k, d), generator=generator).float()
    codebook = codebook[torch.minimum(torch.randint(k, (k,), generator=generator), torch.arange(k))]
    return torch.randint(-3, 4, (n, d), generator=generator).float(), codebook
