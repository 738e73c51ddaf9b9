import numpy as np
import pytest
import torch

from driftvq.functional import Drift, DriftMoments, drift_moments, fit_drift


def fit(codes: torch.Tensor, moved: torch.Tensor, weight: torch.Tensor | None = None) -> Drift:
    return fit_drift(drift_moments(codes, moved, codes.new_ones(len(codes)) if weight is None else weight))


def data(n: int = 400, d: int = 5, noise: float = 0.0, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.arange(1, d + 1) + 3
    matrix = torch.randn(d, d, generator=generator, dtype=torch.float64) * 0.1
    shift = torch.randn(d, generator=generator, dtype=torch.float64)
    error = noise * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return codes, codes @ matrix + shift + error, matrix, shift


def test_recovers_an_affine_drift() -> None:
    codes, moved, matrix, shift = data()
    drift = fit(codes, moved)
    assert torch.allclose(drift.linear, matrix, atol=1e-9)
    anywhere = torch.randn(10, 5, dtype=torch.float64) * 100
    assert torch.allclose(drift.shift + (anywhere - drift.origin) @ drift.linear, anywhere @ matrix + shift)


def test_agrees_with_least_squares_where_noise_is_small() -> None:
    codes, moved, *_ = data(noise=1e-3)
    design = np.column_stack([codes.numpy(), np.ones(len(codes))])
    solution = np.linalg.lstsq(design, moved.numpy(), rcond=None)[0]
    np.testing.assert_allclose(fit(codes, moved).linear, solution[:-1], atol=1e-4)


def test_moments_add_up_and_weights_leave_latents_out() -> None:
    codes, moved, *_ = data(noise=0.5)
    weight = (torch.arange(400) < 300).double()
    parts = [drift_moments(codes[s], moved[s], weight[s]) for s in (slice(0, 150), slice(150, 400))]
    added = fit_drift(DriftMoments(*(a + b for a, b in zip(*parts, strict=True))))
    for a, b, c in zip(added, fit(codes, moved, weight), fit(codes[:300], moved[:300]), strict=True):
        assert torch.allclose(a, b)
        assert torch.allclose(b, c)


def test_signal_of_pure_noise_is_its_noise_on_average() -> None:
    ratios = []
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        codes, moved = torch.randn(2, 100, 4, generator=generator, dtype=torch.float64)
        drift = fit(codes, moved)
        ratios.append((drift.signal / drift.noise).numpy())
    np.testing.assert_allclose(np.mean(ratios, axis=0), 1, rtol=0.1)


def test_shrinks_what_is_not_significant() -> None:
    generator = torch.Generator().manual_seed(0)
    codes, moved = torch.randn(2, 100, 4, generator=generator, dtype=torch.float64)
    solution = np.linalg.lstsq(np.column_stack([codes.numpy(), np.ones(100)]), moved.numpy(), rcond=None)[0]
    assert fit(codes, moved).linear.norm() < 0.7 * np.linalg.norm(solution[:-1])


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_latents_give_a_shift_at_most(n: int) -> None:
    codes, moved, *_ = data(n=n)
    drift = fit(codes, moved)
    assert (drift.linear == 0).all()
    assert all(part.isfinite().all() for part in drift)
    assert torch.allclose(drift.shift, moved.mean(dim=0) if n else torch.zeros(5, dtype=torch.float64))


def test_one_code_for_all_gives_no_linear_part() -> None:
    codes = torch.ones(50, 3)
    drift = fit(codes, torch.randn(50, 3))
    assert drift.linear.abs().max() < 1e-3
    assert all(part.isfinite().all() for part in drift)
