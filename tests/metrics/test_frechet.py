import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from driftvq.metrics import FeatureMoments, frechet_distance


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
