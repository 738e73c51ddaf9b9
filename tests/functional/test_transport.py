import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax

from driftvq.functional import (
    Gaussian,
    distance_spread,
    gaussian,
    gaussian_transport,
    mean_assignment,
    moments,
    square_moments,
    wasserstein_loss,
)
from tests.memory import largest_allocation


def cloud(count: int, dim: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, dim)) @ generator.normal(size=(dim, dim)) + generator.normal(size=dim)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    first, second = np.cov(a.T, bias=True), np.cov(b.T, bias=True)
    # The eigenvalues of Σ T are those of Σ^½ T Σ^½, so no root of a matrix is needed.
    mixed = np.sqrt(np.linalg.eigvals(first @ second).real.clip(min=0)).sum()
    return float(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(first + second) - 2 * mixed)


def fitted(x: torch.Tensor) -> Gaussian:
    return gaussian(moments(x, torch.ones(len(x)), x[0]), x[0])


def test_moments_give_mean_and_covariance_of_the_weighted_rows() -> None:
    x = cloud(50, 3, 0)
    weight = torch.arange(50) % 3
    found = gaussian(moments(torch.tensor(x), weight, torch.tensor(x[0])), torch.tensor(x[0]))
    np.testing.assert_allclose(found.mean, np.average(x, axis=0, weights=weight))
    np.testing.assert_allclose(found.covariance, np.cov(x.T, fweights=weight.numpy(), bias=True))


def test_transport_is_the_closed_form_and_its_map_carries_one_gaussian_to_the_other() -> None:
    a, b = cloud(200, 4, 1), cloud(300, 4, 2)
    source, target = fitted(torch.tensor(a)), fitted(torch.tensor(b))
    found, matrix = gaussian_transport(source, target)
    assert float(found) == pytest.approx(distance(a, b))
    np.testing.assert_allclose(matrix @ source.covariance @ matrix.t(), target.covariance, atol=1e-9)
    assert float(gaussian_transport(source, source)[0]) == pytest.approx(0, abs=1e-9)


def test_transport_leaves_out_directions_without_extent() -> None:
    flat, full = cloud(50, 3, 3), cloud(50, 3, 4)
    flat[:, 2] = 1
    found, matrix = gaussian_transport(fitted(torch.tensor(flat)), fitted(torch.tensor(full)))
    assert float(found) == pytest.approx(distance(flat, full), rel=1e-6)
    assert matrix.isfinite().all()
    assert matrix.abs().max() < 100


def test_gradient_of_the_wasserstein_loss_by_finite_differences() -> None:
    target = fitted(torch.tensor(cloud(60, 3, 5)))
    codes = torch.tensor(cloud(7, 3, 6), requires_grad=True)
    value = wasserstein_loss(codes, target)
    value.backward()
    step, numeric = 1e-5, np.zeros((7, 3))
    for index in np.ndindex(7, 3):
        ends = []
        for sign in (1, -1):
            moved = codes.detach().clone()
            moved[index] += sign * step
            ends.append(float(wasserstein_loss(moved, target)))
        numeric[index] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(codes.grad, numeric, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_spread_of_the_distances_without_forming_them(scale: float) -> None:
    a, b = scale * cloud(40, 3, 7), scale * cloud(30, 3, 8)
    z, c = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    origin = c.mean(dim=0)
    found = distance_spread(*(square_moments(x, torch.ones(len(x)), origin) for x in (z, c)))
    assert float(found) == pytest.approx((cdist(a, b) ** 2).std(), rel=1e-4)


def test_mean_assignment_in_blocks() -> None:
    torch.manual_seed(0)
    z, weight, bias, share = torch.randn(5000, 4), torch.randn(600, 4), torch.randn(600), torch.rand(5000)
    expected = share.numpy() @ softmax(z.double().numpy() @ weight.double().numpy().T + bias.numpy(), axis=1)
    np.testing.assert_allclose(mean_assignment(z, weight, bias, share), expected, rtol=1e-4)
    z, weight = torch.randn(8192, 4), torch.randn(4096, 4)
    share = torch.ones(8192)
    used = largest_allocation(lambda: mean_assignment(z, weight, torch.zeros(4096), share))
    assert used < 8192 * 4096 * 4 / 2
