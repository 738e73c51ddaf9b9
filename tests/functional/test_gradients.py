import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import (
    KERNELS,
    blocks,
    directional,
    modified_straight_through,
    nearest,
    rotate,
    spread_gradient,
    straight_through,
)
from tests.functional.dense import dense_weights
from tests.memory import largest_allocation

ESTIMATORS = {
    "straight_through": straight_through,
    "modified": modified_straight_through,
    "modified_divisor": lambda z, c: modified_straight_through(z, c, 3.0),
    "rotation": rotate,
}


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(
    n=st.integers(0, 20), d=st.integers(1, 9), seed=st.integers(0, 1000), scale=st.sampled_from([1e-20, 1e-3, 1, 1e6])
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_value_is_the_code_to_the_last_bit(name, n, d, seed, scale):
    z = (randn(n, d, seed=seed, dtype=torch.float32) * 17).requires_grad_()
    codes = (randn(n, d, seed=seed + 1, dtype=torch.float32) * scale).requires_grad_()
    assert torch.equal(ESTIMATORS[name](z, codes), codes)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_empty_batch_has_a_gradient(name):
    z, codes = torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 3, requires_grad=True)
    out = ESTIMATORS[name](z, codes)
    out.sum().backward()
    assert out.shape == z.grad.shape == (0, 3)


def test_straight_through_gradient_is_the_identity():
    z, codes, upstream = randn(6, 4).requires_grad_(), randn(6, 4, seed=1).requires_grad_(), randn(6, 4, seed=2)
    straight_through(z, codes).backward(upstream)
    assert torch.equal(z.grad, upstream)
    assert codes.grad is None


@pytest.mark.parametrize(("divisor", "d"), [(None, 6), (24.0, 24), (1.0, 1)])
def test_modified_gives_two_over_d_to_the_winning_codes(divisor, d):
    winners = torch.tensor([0, 2, 2, 0, 2, 4])
    codebook = randn(5, 3).requires_grad_()
    z, upstream = randn(6, 3, seed=1).requires_grad_(), randn(6, 3, seed=2)
    modified_straight_through(z, F.embedding(winners, codebook), divisor).backward(upstream)
    expected_kd = np.zeros((5, 3))
    np.add.at(expected_kd, winners.numpy(), 2 / d * upstream.numpy())
    assert torch.equal(z.grad, upstream)
    np.testing.assert_allclose(codebook.grad.numpy(), expected_kd, rtol=1e-12)


def test_modified_equals_its_formula_under_autograd():
    z, codes, upstream = randn(7, 3), randn(7, 3, seed=1), randn(7, 3, seed=2)

    def gradients(estimate):
        leaves = z.clone().requires_grad_(), codes.clone().requires_grad_()
        return torch.autograd.grad(estimate(*leaves), leaves, upstream)

    formula = gradients(lambda z, c: z + (c - z).detach() + 2 / 7 * (c - c.detach()))
    torch.testing.assert_close(gradients(modified_straight_through), formula)


def rotation_matrices(z_nd, codes_nd):
    """λR of each latent: ``I - 2 r rᵀ + 2 ĉ ẑᵀ`` times ``|c| / |z|``."""
    matrices = []
    for z, c in zip(z_nd, codes_nd, strict=True):
        z_unit, c_unit = z / np.linalg.norm(z), c / np.linalg.norm(c)
        r = (z_unit + c_unit) / np.linalg.norm(z_unit + c_unit)
        rotation = np.eye(len(z)) - 2 * np.outer(r, r) + 2 * np.outer(c_unit, z_unit)
        np.testing.assert_allclose(rotation @ z_unit, c_unit, atol=1e-10)
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(len(z)), atol=1e-10)
        assert np.linalg.det(rotation) == pytest.approx(1)
        matrices.append(rotation * np.linalg.norm(c) / np.linalg.norm(z))
    return np.stack(matrices)


@given(n=st.integers(1, 8), d=st.integers(2, 20), seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_rotation_gradient_is_the_transposed_rotation(n, d, seed):
    z, codes, upstream = randn(n, d, seed=seed).requires_grad_(), randn(n, d, seed=seed + 1), randn(n, d, seed=seed + 2)
    codes.requires_grad_()
    rotate(z, codes).backward(upstream)
    matrices = rotation_matrices(z.detach().numpy(), codes.detach().numpy())
    expected = np.einsum("nij,ni->nj", matrices, upstream.numpy())
    np.testing.assert_allclose(z.grad.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert codes.grad is None


def test_rotation_agrees_with_a_detached_matrix_under_autograd():
    z, codes, upstream = randn(5, 4), randn(5, 4, seed=1), randn(5, 4, seed=2)
    matrices = torch.from_numpy(rotation_matrices(z.numpy(), codes.numpy()))
    ours, plain = z.clone().requires_grad_(), z.clone().requires_grad_()
    out = rotate(ours, codes)
    expected = torch.einsum("nij,nj->ni", matrices, plain)
    torch.testing.assert_close(out, expected)
    out.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_rotation_by_zero_keeps_the_gradient():
    z, upstream = randn(5, 4).requires_grad_(), randn(5, 4, seed=1)
    rotate(z, z.detach().clone()).backward(upstream)
    torch.testing.assert_close(z.grad, upstream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["z = 0", "c = 0", "both 0", "z = -c", "nearly opposite", "tiny z", "huge z"])
def test_rotation_is_finite_where_it_degenerates(case, dtype):
    z, codes = randn(4, 3, dtype=dtype), randn(4, 3, seed=1, dtype=dtype)
    z = {
        "z = 0": z * 0,
        "both 0": z * 0,
        "z = -c": -codes,
        "nearly opposite": -codes + 1e-7 * z,
        "tiny z": z * 1e-30,
        "huge z": z * 1e15,
    }.get(case, z)
    codes = codes * 0 if case in ("c = 0", "both 0") else codes
    z.requires_grad_()
    out = rotate(z, codes)
    out.sum().backward()
    assert torch.equal(out, codes)
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gain", [1.0, 3.0])
@pytest.mark.parametrize("elements", [1, 2**21])
def test_spread_gradient_agrees_with_dense_autograd(monkeypatch, kernel, gain, elements):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    z, codes, upstream = randn(80, 3), randn(11, 3, seed=1), randn(80, 3, seed=2)
    bandwidth = torch.tensor(0.7, dtype=torch.float64)
    ours, plain = codes.clone().requires_grad_(), codes.clone().requires_grad_()
    zero = spread_gradient(z.requires_grad_(), ours, kernel, bandwidth, gain)
    assert torch.equal(zero, torch.zeros_like(zero))
    zero.backward(upstream)
    assert z.grad is None
    weights_nk = dense_weights(z.detach(), codes, kernel, bandwidth, gain)
    weights_nk.scatter_(1, nearest(z, codes)[:, None], 0)
    moved_nkd = weights_nk[:, :, None] * plain
    (moved_nkd - moved_nkd.detach()).sum(dim=1).backward(upstream)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-7, atol=1e-9)


def test_spread_gradient_uses_the_bandwidth_of_the_forward_pass():
    z, codes, upstream = randn(30, 3), randn(7, 3, seed=1), randn(30, 3, seed=2)

    def gradient(disturb):
        codebook, bandwidth = codes.clone().requires_grad_(), torch.tensor(0.5, dtype=torch.float64)
        zero = spread_gradient(z, codebook, "gaussian", bandwidth)
        if disturb:
            bandwidth.mul_(9)
        zero.backward(upstream)
        return codebook.grad

    assert torch.equal(gradient(True), gradient(False))


def test_spread_gradient_keeps_nothing_of_latents_times_codes():
    n, k = 4096, 4096
    z, codebook = randn(n, 4, dtype=torch.float32), randn(k, 4, seed=1, dtype=torch.float32).requires_grad_()

    def forward_and_backward():
        spread_gradient(z, codebook, "gaussian", torch.tensor(1.0)).sum().backward()

    assert largest_allocation(forward_and_backward) <= blocks.CPU_BLOCK_ELEMENTS * 4 < n * k * 4 / 4
    assert codebook.grad.abs().sum() > 0


def test_a_directional_step_has_the_length_of_the_error_and_is_turned_by_the_noise() -> None:
    torch.manual_seed(0)
    z, codes, noise = (torch.randn(50, 4, dtype=torch.float64) for _ in range(3))
    turned = codes - z + noise
    expected = z + (codes - z).norm(dim=1, keepdim=True) * turned / turned.norm(dim=1, keepdim=True)
    torch.testing.assert_close(directional(z, codes, noise), expected)
    torch.testing.assert_close(directional(z, codes, torch.zeros_like(z)), codes)


def test_gradient_of_a_directional_step_is_that_of_its_length_alone() -> None:
    torch.manual_seed(0)
    z, codes, wanted = (torch.randn(20, 3, dtype=torch.float64) for _ in range(3))
    z.requires_grad_()
    codes.requires_grad_()
    directional(z, codes, torch.zeros(20, 3, dtype=torch.float64)).backward(wanted)
    unit = ((codes - z) / (codes - z).norm(dim=1, keepdim=True)).detach()
    along = (wanted * unit).sum(dim=1, keepdim=True) * unit
    torch.testing.assert_close(codes.grad, along)
    torch.testing.assert_close(z.grad, wanted - along)


def test_gradient_of_a_directional_step_is_finite_where_a_latent_is_a_code() -> None:
    z = torch.zeros(1, 3, requires_grad=True)
    directional(z, torch.zeros(1, 3), torch.zeros(1, 3)).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_a_rotation_is_the_same_at_every_scale(scale):
    z, codes, upstream = (randn(6, 4, seed=seed, dtype=torch.float32) for seed in range(3))
    gradients = []
    for factor in (1.0, scale):
        scaled = (z * factor).requires_grad_()
        rotate(scaled, codes * factor).backward(upstream)
        gradients.append(scaled.grad)
    torch.testing.assert_close(*gradients)


def test_a_latent_that_is_next_to_nothing_beside_its_code_gets_its_gradient_unchanged() -> None:
    codes, gradient = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    z = (torch.randn(3, 4, dtype=torch.float64) * torch.tensor([[1e-12], [0.0], [1.0]])).requires_grad_()
    rotated = rotate(z, codes)
    assert torch.equal(rotated, codes)
    (got,) = torch.autograd.grad(rotated, z, gradient)
    assert torch.equal(got[:2], gradient[:2])
    ratio = codes[2].norm() / z[2].norm()  # of the last one it is turned, and stretched by λ
    torch.testing.assert_close(got[2].norm(), gradient[2].norm() * ratio)
