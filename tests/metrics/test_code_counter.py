import math

import numpy as np
import pytest
import torch

from driftvq.metrics import CodeCounter


def test_batches_add_up():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 50, (7, 4, 5))
    counter = CodeCounter(64)
    for batch in (indices[:3], indices[3:4], indices[4:]):
        counter.update(torch.from_numpy(batch))
    share = np.bincount(indices.ravel(), minlength=64) / indices.size
    assert counter.usage() == (share > 0).sum() / 64
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    assert counter.perplexity() == pytest.approx(math.exp(entropy))
    assert counter.bits_per_image() == 4 * 5 * 6


def test_several_codebooks_are_counted_apart():
    indices = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    indices[..., 1] = torch.tensor([[0, 1], [2, 3]])[:, None]
    counter = CodeCounter(4)
    counter.update(indices)
    assert counter.usage() == (1 / 4 + 1) / 2
    assert counter.perplexity() == pytest.approx((1 + 4) / 2)
    assert counter.bits_per_image() == 2 * 2 * 2


def test_masked_positions_are_not_counted():
    counter = CodeCounter(2)
    counter.update(torch.tensor([[[-1, 1]], [[-1, -1]]]))
    assert (counter.usage(), counter.perplexity(), counter.bits_per_image()) == (0.5, 1.0, 0.5)


def test_wrong_indices_are_refused():
    counter = CodeCounter(4)
    with pytest.raises(ValueError, match="indices must lie between -1 and 3, got 0 to 4"):
        counter.update(torch.tensor([[[0, 4]]]))
    with pytest.raises(ValueError, match=r"integers b h w or b h w q, got torch.int64 \(4,\)"):
        counter.update(torch.arange(4))
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        counter.update(torch.zeros(1, 2, 2))
    counter.update(torch.zeros(1, 2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="indices per position must stay 1, got 3"):
        counter.update(torch.zeros(1, 2, 2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="codebook_size must be at least 1, got 0"):
        CodeCounter(0)
