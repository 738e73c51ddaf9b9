import math

import numpy as np
import pytest
import torch

from driftvq import make_quantizer
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


@pytest.mark.parametrize("shared", [True, False])
def test_a_quantizer_says_which_indices_share_a_codebook(shared):
    sizes = 8 if shared else (8, 4)
    vq = make_quantizer("residual_vq", dim=4, codebook_size=sizes, num_quantizers=2, shared_codebook=shared)
    first, second = torch.tensor([0, 1, 2, 3]), torch.tensor([2, 3, 3, 3])
    counter = CodeCounter(vq)
    counter.update(torch.stack([first, second], dim=-1)[None, None])
    assert counter.usage() == (4 / 8 if shared else (4 / 8 + 2 / 4) / 2)
    entropy = [[1, 1, 2, 4]] if shared else [[1, 1, 1, 1], [1, 3]]
    expected = [math.exp(-sum(n / sum(own) * math.log(n / sum(own)) for n in own)) for own in entropy]
    assert counter.perplexity() == pytest.approx(sum(expected) / len(expected))
    assert counter.bits_per_image() == (4 * 3 * 2 if shared else 4 * 3 + 4 * 2)
    assert counter.latents_per_code() == (8 / 8 if shared else 4 / 8)
    possible = [1 - (7 / 8) ** 8] if shared else [1 - (7 / 8) ** 4, 1 - (3 / 4) ** 4]
    assert counter.expected_usage() == pytest.approx(sum(possible) / len(possible))


@pytest.mark.parametrize("shared", [True, False])
def test_coarse_cells_are_counted_once(shared):
    vq = make_quantizer(
        "multi_scale_vq", dim=4, codebook_size=16, scales=(1, 2), shared_codebook=shared, channel_first=True
    )
    indices = vq(torch.randn(3, 4, 8, 8)).indices
    counter = CodeCounter(vq)
    counter.update(indices)
    levels = [level.numpy().ravel() for level in vq.tokens(indices)]
    assert counter.indices == sum(map(len, levels)) == 3 * (1 + 4 + 64)
    assert counter.bits_per_image() == (1 + 4 + 64) * 4
    books = [np.concatenate(levels)] if shared else levels
    assert counter.usage() == pytest.approx(np.mean([len(np.unique(book)) / 16 for book in books]))


def test_groups_of_levels_are_counted_by_their_codebooks():
    vq = make_quantizer("grouped_vq", dim=8, codebook_size=16, groups=2, quantizer="residual_vq", num_quantizers=3)
    assert vq.books_per_index == (0, 1, 2, 3, 4, 5)
    indices = vq(torch.randn(5, 7, 8)).indices[:, None]
    counter = CodeCounter(vq)
    counter.update(indices)
    shares = [len(column.unique()) / 16 for column in indices.flatten(end_dim=-2).unbind(1)]
    assert counter.usage() == pytest.approx(sum(shares) / 6)


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
