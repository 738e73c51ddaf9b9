import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.kid import KernelInceptionDistance

from driftvq.metrics import kid, polynomial_mmd
from driftvq.metrics.kid import FeatureSample


class Identity(nn.Identity):
    """Hands torchmetrics features in place of images."""

    num_features = 32


def features(n, seed, shift=0.0, dim=32):
    return torch.from_numpy(np.random.default_rng(seed).normal(shift, 1, (n, dim)).astype(np.float32))


def by_loops(x, y):
    def kernel(a, b):
        return (float(np.dot(a, b)) / len(a) + 1) ** 3

    x, y = x.double().numpy(), y.double().numpy()
    xx = np.mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    yy = np.mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    return xx + yy - 2 * np.mean([kernel(a, b) for a in x for b in y])


def test_mmd_equals_its_definition():
    x, y = features(9, 0), features(13, 1, 0.3)
    assert polynomial_mmd(x.double(), y.double()).item() == pytest.approx(by_loops(x, y), rel=1e-10)
    assert polynomial_mmd(x, y).item() == pytest.approx(by_loops(x, y), rel=1e-5)


def test_mmd_takes_its_kernel_as_arguments():
    x, y = features(5, 0).double(), features(6, 1).double()
    linear = polynomial_mmd(x, y, degree=1, gamma=1.0, coef=0.0).item()
    pairs = x.sum(0).square().sum() - x.square().sum(), y.sum(0).square().sum() - y.square().sum()
    assert linear == pytest.approx((pairs[0] / 20 + pairs[1] / 30 - 2 * x.mean(0) @ y.mean(0)).item())


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_equals_torchmetrics_on_the_same_subsets():
    x, y = features(60, 0), features(50, 1, 0.3)
    theirs = KernelInceptionDistance(feature=Identity(), subsets=7, subset_size=20)
    theirs.update(x, real=True)
    theirs.update(y, real=False)
    torch.manual_seed(5)
    mean, std = theirs.compute()
    ours = kid(x, y, subsets=7, subset_size=20, seed=5)
    assert (ours.subsets, ours.subset_size) == (7, 20)
    assert ours.mean == pytest.approx(mean.item(), rel=1e-4)
    assert ours.std == pytest.approx(std.item(), rel=1e-3)


def test_few_images_are_used_all_at_once():
    x, y = features(20, 0), features(30, 1, 0.3)
    result = kid(x, y)
    assert result.mean == pytest.approx(by_loops(x, y), rel=1e-4)
    assert (result.std, result.subsets, result.subset_size) == (None, 1, 20)


def test_it_is_unbiased():
    values = [kid(features(10, 2 * seed), features(10, 2 * seed + 1)).mean for seed in range(300)]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(len(values))
    assert min(values) < 0 < max(values)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"n, m ≥ 2, got \(1, 32\) and \(5, 32\)"):
        kid(features(1, 0), features(5, 0))
    with pytest.raises(ValueError, match=r"got \(5, 32\) and \(5, 31\)"):
        polynomial_mmd(features(5, 0), features(5, 0, dim=31))
    with pytest.raises(ValueError, match="subset_size at least 2, got 100 and 1"):
        kid(features(5, 0), features(5, 0), subset_size=1)


def test_a_short_stream_is_kept_whole_and_in_order():
    x, y = features(10, 0), features(10, 1)
    sample = FeatureSample(32, limit=12)
    sample.update(x[:7], y[:7])
    sample.update(x[7:], y[7:])
    assert torch.equal(sample.real, x)
    assert torch.equal(sample.fake, y)


def test_a_long_stream_is_sampled_evenly_in_pairs():
    counts = np.zeros(40)
    numbers = torch.arange(40.0).unsqueeze(1)
    for seed in range(500):
        sample = FeatureSample(1, limit=10, seed=seed)
        sample.update(numbers[:25], -numbers[:25])
        sample.update(numbers[25:], -numbers[25:])
        assert torch.equal(sample.real, -sample.fake)
        kept = sample.real.flatten().int().tolist()
        assert len(set(kept)) == 10
        counts[kept] += 1
    expected = 500 * 10 / 40
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()
