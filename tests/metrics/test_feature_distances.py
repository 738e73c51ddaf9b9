import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from driftvq.metrics import FeatureMoments, frechet_distance, kid, polynomial_mmd
from driftvq.metrics.feature_distances import FeatureSample


class Identity(nn.Identity):
    """Hands torchmetrics features in place of images."""

    num_features = 24


def features(n, dim, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) * spread + rng.normal(size=dim)


def moments(x):
    return torch.from_numpy(x.mean(0)), torch.from_numpy(np.cov(x, rowvar=False))


def by_scipy(x, y):
    s1, s2 = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = sqrtm(s1 @ s2).real
    return ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s1 + s2 - 2 * root)


def by_singular_values(x, y):
    """``tr (Σ1 Σ2)^½`` is the nuclear norm of the product of the centred features: exact at any rank."""
    a, b = ((f - f.mean(0)) / np.sqrt(len(f) - 1) for f in (x, y))
    root = np.linalg.svd(a @ b.T, compute_uv=False).sum()
    return ((x.mean(0) - y.mean(0)) ** 2).sum() + (a**2).sum() + (b**2).sum() - 2 * root


@pytest.mark.filterwarnings("ignore:Matrix is singular")
@pytest.mark.parametrize("n", [200, 24, 10, 2])
def test_equals_scipy_and_singular_values_at_any_rank(n):
    x, y = features(n, 24, 0), features(n + 3, 24, 1)
    ours = frechet_distance(*moments(x), *moments(y)).item()
    assert ours == pytest.approx(by_singular_values(x, y), rel=1e-7)
    assert ours == pytest.approx(by_scipy(x, y), rel=1e-7 if n == 200 else 1e-4)


def test_few_images_of_many_features():
    x, y = features(20, 512, 0), features(30, 512, 1)
    ours = frechet_distance(*moments(x), *moments(y)).item()
    assert ours == pytest.approx(by_singular_values(x, y), rel=1e-6)


def test_two_gaussians_on_axes():
    s1, s2 = torch.diag(torch.tensor([4.0, 9.0])), torch.diag(torch.tensor([1.0, 25.0]))
    distance = frechet_distance(torch.zeros(2), s1, torch.tensor([3.0, 0.0]), s2)
    assert distance.item() == pytest.approx(9 + (2 - 1) ** 2 + (3 - 5) ** 2)


def test_equal_sets_have_distance_0():
    x = moments(features(100, 24, 0))
    assert frechet_distance(*x, *x).item() == pytest.approx(0, abs=1e-9)


def test_batches_give_the_moments_and_torchmetrics_value():
    x, y = features(90, 24, 0).astype(np.float32), features(70, 24, 1, 0.5).astype(np.float32)
    theirs = FrechetInceptionDistance(feature=Identity())
    theirs.set_dtype(torch.float64)
    ours = []
    for data, real in ((x, True), (y, False)):
        batched = FeatureMoments(24)
        for part in torch.from_numpy(data).split(16):
            batched.update(part)
            theirs.update(part, real=real)
        np.testing.assert_allclose(batched.mean, data.astype(float).mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(batched.covariance, np.cov(data.astype(float), rowvar=False), rtol=1e-8, atol=1e-8)
        ours += [batched.mean, batched.covariance]
    assert frechet_distance(*ours).item() == pytest.approx(theirs.compute().item(), rel=1e-5)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"means must be \(d,\) and covariances \(d, d\), got \[\(3,\), \(2, 2\)"):
        frechet_distance(torch.zeros(3), torch.eye(2), torch.zeros(3), torch.eye(3))
    with pytest.raises(ValueError, match=r"features must be \(n, 4\), got \(2, 3\)"):
        FeatureMoments(4).update(torch.zeros(2, 3))
    single = FeatureMoments(2)
    single.update(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="a covariance needs at least 2 images, got 1"):
        _ = single.covariance


def normal_features(n, seed, shift=0.0, dim=32):
    return torch.from_numpy(np.random.default_rng(seed).normal(shift, 1, (n, dim)).astype(np.float32))


def by_loops(x, y):
    def kernel(a, b):
        return (float(np.dot(a, b)) / len(a) + 1) ** 3

    x, y = x.double().numpy(), y.double().numpy()
    xx = np.mean([kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    yy = np.mean([kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    return xx + yy - 2 * np.mean([kernel(a, b) for a in x for b in y])


def test_mmd_equals_its_definition():
    x, y = normal_features(9, 0), normal_features(13, 1, 0.3)
    assert polynomial_mmd(x.double(), y.double()).item() == pytest.approx(by_loops(x, y), rel=1e-10)
    assert polynomial_mmd(x, y).item() == pytest.approx(by_loops(x, y), rel=1e-5)


def test_mmd_takes_its_kernel_as_arguments():
    x, y = normal_features(5, 0).double(), normal_features(6, 1).double()
    linear = polynomial_mmd(x, y, degree=1, gamma=1.0, coef=0.0).item()
    pairs = x.sum(0).square().sum() - x.square().sum(), y.sum(0).square().sum() - y.square().sum()
    assert linear == pytest.approx((pairs[0] / 20 + pairs[1] / 30 - 2 * x.mean(0) @ y.mean(0)).item())


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_equals_torchmetrics_on_the_same_subsets():
    x, y = normal_features(60, 0), normal_features(50, 1, 0.3)
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
    x, y = normal_features(20, 0), normal_features(30, 1, 0.3)
    result = kid(x, y)
    assert result.mean == pytest.approx(by_loops(x, y), rel=1e-4)
    assert (result.std, result.subsets, result.subset_size) == (None, 1, 20)


def test_it_is_unbiased():
    values = [kid(normal_features(10, 2 * seed), normal_features(10, 2 * seed + 1)).mean for seed in range(300)]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(len(values))
    assert min(values) < 0 < max(values)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"n, m ≥ 2, got \(1, 32\) and \(5, 32\)"):
        kid(normal_features(1, 0), normal_features(5, 0))
    with pytest.raises(ValueError, match=r"got \(5, 32\) and \(5, 31\)"):
        polynomial_mmd(normal_features(5, 0), normal_features(5, 0, dim=31))
    with pytest.raises(ValueError, match="subset_size at least 2, got 100 and 1"):
        kid(normal_features(5, 0), normal_features(5, 0), subset_size=1)


def test_a_short_stream_is_kept_whole_and_in_order():
    x, y = normal_features(10, 0), normal_features(10, 1)
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
