import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import KERNELS, blocks, kernel_transfer, nearest
from driftvq.functional.gradients import kernel_moments
from tests.functional.dense import dense_weights
from tests.memory import largest_allocation


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("name", ["cauchy", "Gaussian", "rank", ""])
def test_unknown_kernel(name):
    with pytest.raises(ValueError, match=r"kernel must be one of .*softmax.*got"):
        kernel_transfer(randn(2, 3), randn(4, 3), randn(2, 1), name, scalar(1.0))


def dense_transfer(x, codebook, values, kernel, width, gain=1.0):
    weights_nk = dense_weights(x, codebook, kernel, width, gain).numpy()
    winners_n = np.square(x.double().numpy()[:, None] - codebook.double().numpy()).sum(axis=2).argmin(axis=1)
    weights_nk[np.arange(len(x)), winners_n] = 0
    return winners_n, weights_nk.T @ values.double().numpy()


def assert_transfers(found, expected, values, rtol=1e-7):
    indices_n, transferred_kv = found
    winners_n, expected_kv = expected
    assert indices_n.dtype == torch.int64
    np.testing.assert_array_equal(indices_n.numpy(), winners_n)
    atol = rtol * values.double().abs().sum(dim=0).max().item()
    np.testing.assert_allclose(transferred_kv.numpy(), expected_kv, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("elements", [1, 900, 2**21])
@pytest.mark.parametrize("gain", [1.0, 5.0])
def test_transfer_agrees_with_a_dense_computation(monkeypatch, kernel, width, elements, gain):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    x, codebook, values = randn(100, 3), randn(21, 3, seed=1), randn(100, 4, seed=2)
    found = kernel_transfer(x, codebook, values, kernel, scalar(width), gain)
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, width, gain), values)


@pytest.mark.parametrize("kernel", KERNELS)
@given(n=st.integers(1, 40), k=st.integers(1, 30), d=st.integers(1, 8), v=st.integers(1, 5), seed=st.integers(0, 9999))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_transfer_of_any_shape(kernel, n, k, d, v, seed):
    x, codebook, values = randn(n, d, seed=seed), randn(k, d, seed=seed + 1), randn(n, v, seed=seed + 2)
    found = kernel_transfer(x, codebook, values, kernel, scalar(0.9))
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, 0.9), values)


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_far_from_the_origin_in_single_precision(kernel):
    x, codebook = randn(200, 8, dtype=torch.float32) + 1e3, randn(40, 8, seed=1, dtype=torch.float32) + 1e3
    values = randn(200, 2, seed=2, dtype=torch.float32)
    found = kernel_transfer(x, codebook, values, kernel, torch.tensor(2.0))
    assert_transfers(found, dense_transfer(x, codebook, values, kernel, 2.0), values, rtol=1e-4)


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


@pytest.mark.parametrize("kernel", KERNELS)
def test_transfer_allocates_blocks_and_not_latents_times_codes(monkeypatch, kernel):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 2**17)
    n, k = 2048, 2048
    x, codebook = randn(n, 4, dtype=torch.float32), randn(k, 4, seed=1, dtype=torch.float32)
    largest = largest_allocation(lambda: kernel_transfer(x, codebook, x, kernel, torch.tensor(1.0)))
    assert largest < n * k * 4 / 16
