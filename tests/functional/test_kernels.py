import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import rankdata

from driftvq.functional import (
    KERNELS,
    blocks,
    gaussian_weights,
    kernel_moments,
    kernel_transfer,
    kernel_weights,
    kernels,
    nearest,
    rank_weights,
    softmax_weights,
)
from tests.functional.dense import dense_weights
from tests.memory import largest_allocation

SHAPES = {
    "b": st.integers(1, 12),
    "k": st.integers(1, 30),
    "width": st.floats(0.05, 20),
    "seed": st.integers(0, 10_000),
}
FEW = settings(max_examples=30, deadline=None, derandomize=True)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


@given(**SHAPES)
@FEW
def test_gaussian_weights_agree_with_numpy(b, k, width, seed):
    dist = randn(b, k, seed=seed).square()
    np.testing.assert_allclose(gaussian_weights(dist, scalar(width)).numpy(), np.exp(-dist.numpy() / width), rtol=1e-12)


@given(**SHAPES, gain=st.floats(0.01, 50))
@FEW
def test_softmax_weights_agree_with_scipy(b, k, width, seed, gain):
    dist = randn(b, k, seed=seed).square()
    expected = np.minimum(1, gain * softmax(-dist.numpy() / width, axis=1))
    np.testing.assert_allclose(softmax_weights(dist, scalar(width), gain).numpy(), expected, rtol=1e-9, atol=1e-300)


@given(**SHAPES)
@FEW
def test_rank_weights_agree_with_scipy_above_the_cutoff(b, k, width, seed):
    dist = randn(b, k, seed=seed).square()
    expected = np.exp(-(rankdata(dist.numpy(), axis=1, method="ordinal") - 1) / width)
    weights = rank_weights(dist, scalar(width)).numpy()
    kept = expected >= kernels.RANK_CUTOFF
    np.testing.assert_allclose(weights[kept], expected[kept], rtol=1e-12)
    assert ((weights[~kept] == 0) | np.isclose(weights[~kept], expected[~kept], rtol=1e-9)).all()
    assert (weights.max(axis=1) == 1).all()


@pytest.mark.parametrize("function", [gaussian_weights, softmax_weights, rank_weights])
def test_distances_are_left_alone(function):
    dist = randn(4, 6).square()
    before = dist.clone()
    function(dist, scalar(0.5))
    assert torch.equal(dist, before)


def test_kernels_by_name():
    dist, width = randn(5, 9).square(), scalar(0.8)
    assert torch.equal(kernel_weights("gaussian", dist, width, 4.0), gaussian_weights(dist, width))
    assert torch.equal(kernel_weights("softmax", dist, width, 4.0), softmax_weights(dist, width, 4.0))
    assert torch.equal(kernel_weights("rank", dist, width, 4.0), rank_weights(dist, width))


@pytest.mark.parametrize("name", ["cauchy", "Gaussian", ""])
def test_unknown_kernel(name):
    with pytest.raises(ValueError, match=r"kernel must be one of .*rank.*got"):
        kernel_weights(name, randn(2, 3).square(), scalar(1.0))
    with pytest.raises(ValueError, match=r"kernel must be one of .*rank.*got"):
        kernel_transfer(randn(2, 3), randn(4, 3), randn(2, 1), name, scalar(1.0))


def dense_transfer(x, codebook, values, kernel, width, gain=1.0):
    weights_nk = dense_weights(x, codebook, kernel, width, gain).numpy()
    winners_n = np.square(x.double().numpy()[:, None] - codebook.double().numpy()).sum(axis=2).argmin(axis=1)
    weights_nk[np.arange(len(x)), winners_n] = 0
    return winners_n, weights_nk.T @ values.double().numpy()


def assert_transfers(found, expected, kernel, values, rtol=1e-7):
    indices_n, transferred_kv = found
    winners_n, expected_kv = expected
    assert indices_n.dtype == torch.int64
    np.testing.assert_array_equal(indices_n.numpy(), winners_n)
    cutoff = kernels.RANK_CUTOFF if kernel == "rank" else 0
    atol = (rtol + cutoff) * values.double().abs().sum(dim=0).max().item()
    np.testing.assert_allclose(transferred_kv.numpy(), expected_kv, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("elements", [1, 900, 2**21])
@pytest.mark.parametrize("gain", [1.0, 5.0])
def test_transfer_agrees_with_a_dense_computation(monkeypatch, kernel, width, elements, gain):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    x, codebook, values = randn(100, 3), randn(21, 3, seed=1), randn(100, 4, seed=2)
    found = kernel_transfer(x, codebook, values, kernel, scalar(width), gain)
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, width, gain), kernel, values)


@pytest.mark.parametrize("kernel", KERNELS)
@given(n=st.integers(1, 40), k=st.integers(1, 30), d=st.integers(1, 8), v=st.integers(1, 5), seed=st.integers(0, 9999))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_transfer_of_any_shape(kernel, n, k, d, v, seed):
    x, codebook, values = randn(n, d, seed=seed), randn(k, d, seed=seed + 1), randn(n, v, seed=seed + 2)
    found = kernel_transfer(x, codebook, values, kernel, scalar(0.9))
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, 0.9), kernel, values)


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_far_from_the_origin_in_single_precision(kernel):
    x, codebook = randn(200, 8, dtype=torch.float32) + 1e3, randn(40, 8, seed=1, dtype=torch.float32) + 1e3
    values = randn(200, 2, seed=2, dtype=torch.float32)
    found = kernel_transfer(x, codebook, values, kernel, torch.tensor(2.0))
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, 2.0), kernel, values, rtol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_of_no_latents_is_zero(kernel):
    indices, transferred = kernel_transfer(randn(0, 3), randn(5, 3), randn(0, 2), kernel, scalar(1.0))
    assert indices.shape == (0,)
    assert torch.equal(transferred, torch.zeros(5, 2, dtype=torch.float64))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_single_code_wins_and_receives_nothing(kernel):
    indices, transferred = kernel_transfer(randn(6, 3), randn(1, 3), randn(6, 2), kernel, scalar(1.0))
    assert indices.tolist() == [0] * 6
    assert transferred.abs().max() == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_has_no_gradient_and_selects_the_nearest_codes(kernel):
    x, codebook = randn(50, 3).requires_grad_(), randn(9, 3, seed=1).requires_grad_()
    indices, transferred = kernel_transfer(x, codebook, x, kernel, scalar(1.0))
    assert not transferred.requires_grad
    assert torch.equal(indices, nearest(x, codebook))


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_leaves_its_input_alone(kernel):
    inputs = randn(50, 3), randn(9, 3, seed=1), randn(50, 2, seed=2)
    before = [tensor.clone() for tensor in inputs]
    kernel_transfer(*inputs, kernel, scalar(1.0))
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [1e-30, 1e-6, 1e6, 1e30])
def test_extreme_bandwidths_stay_finite(kernel, width):
    x, codebook = randn(30, 3, dtype=torch.float32), randn(9, 3, seed=1, dtype=torch.float32)
    indices, transferred = kernel_transfer(x, codebook, torch.ones(30, 1), kernel, torch.tensor(width))
    assert torch.equal(indices, nearest(x, codebook))
    assert transferred.isfinite().all()


def test_moments_agree_with_numpy():
    x, codebook = randn(60, 3), randn(8, 3, seed=1)
    weight_n1 = torch.rand(60, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    indices, mass, sums, squares = kernel_moments(x, codebook, "gaussian", scalar(1.5), 1.0, weight_n1)
    carried = torch.cat([torch.ones(60, 1), x, x.square().sum(dim=1, keepdim=True)], dim=1) * weight_n1
    winners, expected = dense_transfer(x, codebook, carried, "gaussian", 1.5)
    np.testing.assert_array_equal(indices.numpy(), winners)
    np.testing.assert_allclose(mass.numpy(), expected[:, 0])
    np.testing.assert_allclose(sums.numpy(), expected[:, 1:4])
    np.testing.assert_allclose(squares.numpy(), expected[:, 4])


@pytest.mark.parametrize("n", [600, 601, 613])
@pytest.mark.parametrize("stride", [2, 5, 7])
def test_rank_estimate_is_close_to_the_whole(monkeypatch, n, stride):
    k = 10
    codebook, values = randn(k, 2, seed=1), torch.ones(n, 1, dtype=torch.float64)
    exact, estimated = [], []
    for seed in range(40):
        x = randn(n, 2, seed=seed)
        exact.append(kernel_transfer(x, codebook, values, "rank", scalar(2.0))[1])
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "RANK_ELEMENTS", n * k // stride)
            indices, transferred = kernel_transfer(x, codebook, values, "rank", scalar(2.0))
        assert torch.equal(indices, nearest(x, codebook))
        estimated.append(transferred)
    assert not torch.equal(exact[0], estimated[0])
    ratio_k = torch.stack(estimated).mean(dim=0) / torch.stack(exact).mean(dim=0)
    torch.testing.assert_close(ratio_k, torch.ones_like(ratio_k), rtol=0, atol=0.05)


def test_rank_estimate_keeps_the_total_mass(monkeypatch):
    n, k = 100, 7
    x, codebook, values = randn(n, 2), randn(k, 2, seed=1), torch.ones(n, 1, dtype=torch.float64)
    whole = kernel_transfer(x, codebook, values, "rank", scalar(2.0))[1].sum()
    for stride in range(2, 60):
        monkeypatch.setattr(kernels, "RANK_ELEMENTS", n * k // stride)
        part = kernel_transfer(x, codebook, values, "rank", scalar(2.0))[1].sum()
        assert part.item() == pytest.approx(whole.item(), rel=1e-6), f"stride {stride}"


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_allocates_blocks_and_not_latents_times_codes(monkeypatch, kernel):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 2**17)
    n, k = 2048, 2048
    x, codebook = randn(n, 4, dtype=torch.float32), randn(k, 4, seed=1, dtype=torch.float32)
    largest = largest_allocation(lambda: kernel_transfer(x, codebook, x, kernel, torch.tensor(1.0)))
    assert largest < n * k * 4 / 16
