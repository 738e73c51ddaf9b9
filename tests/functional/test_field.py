import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import field_agreement, field_moments, fit_field


def draw(n: int = 80, p: int = 5, d: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, displacements and weights, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    features, moved = (torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (p, d))
    return features, moved, torch.rand(n, generator=generator, dtype=torch.float64)


@given(n=st.integers(0, 30), p=st.integers(1, 8), d=st.integers(1, 5), seed=st.integers(0, 9999))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_moments_are_weighted_sums_of_products(n: int, p: int, d: int, seed: int) -> None:
    features, moved, weight = (tensor.numpy() for tensor in draw(n, p, d, seed))
    expected = np.zeros((p, p + d))
    for f, m, w in zip(features, moved, weight, strict=True):
        expected += w * np.outer(f, np.concatenate([f, m]))
    np.testing.assert_allclose(field_moments(*draw(n, p, d, seed)), expected, atol=1e-12)


def test_moments_add_up() -> None:
    features, moved, weight = draw()
    parts = [field_moments(features[s], moved[s], weight[s]) for s in (slice(0, 30), slice(30, 80))]
    torch.testing.assert_close(parts[0] + parts[1], field_moments(features, moved, weight))


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("n", [2, 80])
def test_the_fit_is_ridge_regression(ridge: float, n: int) -> None:
    """Least squares of rows to which one per feature is added that asks for zero."""
    features, moved, weight = (tensor.numpy() for tensor in draw(n))
    level = ridge * np.mean(np.diag((features * weight[:, None]).T @ features))
    design = np.vstack([features * np.sqrt(weight)[:, None], np.sqrt(level) * np.eye(5)])
    target = np.vstack([moved * np.sqrt(weight)[:, None], np.zeros((5, 3))])
    expected = np.linalg.lstsq(design, target, rcond=None)[0]
    np.testing.assert_allclose(fit_field(field_moments(*draw(n)), ridge), expected, rtol=1e-8, atol=1e-11)


def test_without_a_ridge_a_linear_field_is_recovered() -> None:
    features, _, weight = draw()
    field = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = fit_field(field_moments(features, features @ field, weight), ridge=1e-12)
    torch.testing.assert_close(found, field, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_ridge_knows_the_scale(scale: float) -> None:
    features, moved, weight = draw()
    plain = fit_field(field_moments(features, moved, weight))
    torch.testing.assert_close(fit_field(field_moments(scale * features, moved, weight)), plain / scale)
    torch.testing.assert_close(fit_field(field_moments(features, moved, scale * weight)), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_seen_is_no_field(dtype: torch.dtype) -> None:
    assert torch.equal(fit_field(torch.zeros(5, 8, dtype=dtype)), torch.zeros(5, 3, dtype=dtype))


def test_agreement_is_that_of_explicit_sums() -> None:
    features, moved, weight = draw()
    field = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    square, product = field_agreement(field, field_moments(features, moved, weight))
    along = (features @ field).numpy()
    rows = list(zip(weight.numpy(), along, moved.numpy(), strict=True))
    assert square.item() == pytest.approx(sum(w * (u @ u) for w, u, _ in rows))
    assert product.item() == pytest.approx(sum(w * (u @ m) for w, u, m in rows))


@pytest.mark.parametrize("together", [1, 25])
def test_noise_does_not_agree_though_neighbours_share_it(together: int) -> None:
    """A field that was fitted to one batch of noise, judged by the next; a drift that goes on agrees in full."""
    found = []
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        features, noise = torch.randn(2, 800 // together, 4, generator=generator, dtype=torch.float64)
        features, noise = features.repeat_interleave(together, 0), noise.repeat_interleave(together, 0)
        ones, ratios = torch.ones(400, dtype=torch.float64), []
        for moved in (noise, features + 1e-3 * noise):
            field = fit_field(field_moments(features[:400], moved[:400], ones), ridge=1e-6)
            ratios.append(torch.stack(field_agreement(field, field_moments(features[400:], moved[400:], ones))))
        found.append(torch.stack(ratios))
    (square, product), (steady_square, steady_product) = torch.stack(found).mean(dim=0)
    assert abs(product / square) < 0.15
    assert steady_product / steady_square == pytest.approx(1, rel=1e-3)
