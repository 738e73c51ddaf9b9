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


def with_one() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    features, moved, weight = draw()
    features[:, 0] = 1
    return features, moved, weight


def eye() -> torch.Tensor:
    return torch.eye(5, dtype=torch.float64)


@given(n=st.integers(0, 30), p=st.integers(1, 8), d=st.integers(1, 5), seed=st.integers(0, 9999))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_moments_are_weighted_sums_of_products(n: int, p: int, d: int, seed: int) -> None:
    features, moved, weight = (tensor.numpy() for tensor in draw(n, p, d, seed))
    expected = np.zeros((p, p + d))
    for f, m, w in zip(features, moved, weight, strict=True):
        expected += np.outer(f, np.concatenate([w * f, m]))
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
    features[:, 0] = 1
    lifts = ridge * weight.sum() * np.arange(1, 6)
    design = np.vstack([features * np.sqrt(weight)[:, None], np.diag(np.sqrt(lifts))])
    target = np.vstack([moved * np.sqrt(weight)[:, None], np.zeros((5, 3))])
    expected = np.linalg.lstsq(design, target, rcond=None)[0]
    moments = field_moments(*(torch.from_numpy(each) for each in (features, moved * weight[:, None], weight)))
    found = fit_field(moments, ridge * torch.arange(1.0, 6, dtype=torch.float64).diag())
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)


def test_without_a_ridge_a_linear_field_is_recovered() -> None:
    features, _, weight = with_one()
    field = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = fit_field(field_moments(features, weight[:, None] * (features @ field), weight), 1e-12 * eye())
    torch.testing.assert_close(found, field, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_ridge_knows_the_number_of_latents(scale: float) -> None:
    features, moved, weight = with_one()
    plain = fit_field(field_moments(features, moved, weight), eye())
    torch.testing.assert_close(fit_field(field_moments(features, scale * moved, scale * weight), eye()), plain)


def test_agreement_is_that_of_explicit_sums() -> None:
    features, moved, weight = draw()
    fields = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    agreement = field_agreement(fields, field_moments(features, moved, weight))
    for field, (square, product) in zip(fields, agreement.tolist(), strict=True):
        along = (features @ field).numpy()
        rows = list(zip(weight.numpy(), along, moved.numpy(), strict=True))
        assert square == pytest.approx(sum(w * (u @ u) for w, u, _ in rows))
        assert product == pytest.approx(sum(u @ m for _, u, m in rows))


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
            moments = field_moments(features[:400], moved[:400], ones)
            field = fit_field(moments, 1e-6 * torch.eye(4, dtype=torch.float64))
            ratios.append(field_agreement(field[None], field_moments(features[400:], moved[400:], ones))[0])
        found.append(torch.stack(ratios))
    (square, product), (steady_square, steady_product) = torch.stack(found).mean(dim=0)
    assert abs(product / square) < 0.15
    assert steady_product / steady_square == pytest.approx(1, rel=1e-3)
