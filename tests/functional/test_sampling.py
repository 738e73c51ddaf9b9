import numpy as np
import torch
from scipy.stats import chisquare, gumbel_r, kstest

from driftvq.functional import seeded_gumbel


def test_is_a_function_of_the_seed():
    a, b, c = (seeded_gumbel(50, torch.tensor(seed)) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_follows_the_gumbel_distribution():
    assert kstest(seeded_gumbel(20000, torch.tensor(0)).numpy(), gumbel_r.cdf).pvalue > 1e-3


def test_largest_keys_are_a_draw_by_weight():
    weight = torch.tensor([1.0, 2.0, 0.0, 5.0])
    first = [(weight.log() + seeded_gumbel(4, torch.tensor(seed))).argmax().item() for seed in range(4000)]
    counts = np.bincount(first, minlength=4)
    assert counts[2] == 0
    assert chisquare(counts[[0, 1, 3]], 4000 * np.array([1, 2, 5]) / 8).pvalue > 1e-3


def test_leaves_the_global_random_state_alone():
    torch.manual_seed(1)
    seeded_gumbel(10, torch.tensor(0))
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(1)).item()
