import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import KERNELS, blocks, kernel_codebook_loss, masked_mse, nearest, orthogonal_loss
from tests.functional.dense import dense_weights
from tests.memory import largest_allocation

WIDTHS = {"gaussian": 0.8, "softmax": 0.5}


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_mask(n, seed=0):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.6


def dense_loss(x_nd, codebook_kd, kernel, bandwidth, gain=1.0, valid_n=None):
    """The formula as it reads, over all latents and codes, with the stop-gradients written out."""
    x_nd = x_nd.detach()
    weights_nk = dense_weights(x_nd, codebook_kd, kernel, bandwidth, gain)
    sq_dist_nk = (x_nd[:, None] - codebook_kd).square().sum(dim=2)
    weights_nk.scatter_(1, sq_dist_nk.detach().argmin(dim=1, keepdim=True), 1)
    per_latent_n = (weights_nk.detach() * sq_dist_nk).sum(dim=1)
    valid_n = torch.ones(len(x_nd), dtype=torch.bool) if valid_n is None else valid_n
    return per_latent_n[valid_n].sum() / (max(int(valid_n.sum()), 1) * x_nd.shape[1])


def value_and_gradient(loss, x_nd, codebook_kd, *args, **kwargs):
    codebook_kd = codebook_kd.clone().requires_grad_()
    out = loss(x_nd, codebook_kd, *args, **kwargs)
    value = out[0] if isinstance(out, tuple) else out
    return value.detach(), torch.autograd.grad(value, codebook_kd)[0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gain", [1.0, 4.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("elements", [1, 2**21])
def test_kernel_loss_agrees_with_dense_autograd(monkeypatch, kernel, gain, masked, elements):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    x, codebook, width = randn(90, 3), randn(12, 3, seed=1), torch.tensor(WIDTHS[kernel], dtype=torch.float64)
    valid = random_mask(90) if masked else None
    ours = value_and_gradient(kernel_codebook_loss, x, codebook, kernel, width, gain, valid_n=valid)
    dense = value_and_gradient(dense_loss, x, codebook, kernel, width, gain, valid_n=valid)
    torch.testing.assert_close(ours, dense, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    n=st.integers(1, 30),
    k=st.integers(1, 20),
    d=st.integers(1, 6),
    seed=st.integers(0, 9999),
    offset=st.floats(-50, 50),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_kernel_loss_of_any_shape(kernel, n, k, d, seed, offset):
    x, codebook = randn(n, d, seed=seed) + offset, randn(k, d, seed=seed + 1) + offset
    width, valid = torch.tensor(WIDTHS[kernel], dtype=torch.float64), random_mask(n, seed)
    ours = value_and_gradient(kernel_codebook_loss, x, codebook, kernel, width, valid_n=valid)
    dense = value_and_gradient(dense_loss, x, codebook, kernel, width, valid_n=valid)
    torch.testing.assert_close(ours, dense, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_loss_in_single_precision_far_from_the_origin(kernel):
    x = randn(300, 8, dtype=torch.float32) + 1e3
    codebook, width = randn(40, 8, seed=1, dtype=torch.float32) + 1e3, torch.tensor(8.0)
    loss, gradient = value_and_gradient(kernel_codebook_loss, x, codebook, kernel, width)
    value, expected = value_and_gradient(dense_loss, x.double(), codebook.double(), kernel, width)
    assert loss.item() == pytest.approx(value.item(), rel=1e-4)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gradient_of_one_latent_is_equation_17(kernel):
    x, codebook, width = randn(1, 4), randn(6, 4, seed=1), torch.tensor(WIDTHS[kernel], dtype=torch.float64)
    _, gradient = value_and_gradient(kernel_codebook_loss, x, codebook, kernel, width)
    weights_k = dense_weights(x, codebook, kernel, width).numpy()[0]
    weights_k[np.square(x.numpy() - codebook.numpy()).sum(axis=1).argmin()] = 1
    step_kd = weights_k[:, None] * (x.numpy() - codebook.numpy())
    np.testing.assert_allclose(-gradient.numpy() * 4 / 2, step_kd, rtol=1e-8, atol=1e-12)


def test_kernel_loss_selects_the_nearest_codes_and_spares_the_latents():
    x, codebook = randn(50, 3).requires_grad_(), randn(9, 3, seed=1).requires_grad_()
    loss, indices = kernel_codebook_loss(x, codebook, "softmax", torch.tensor(1.0, dtype=torch.float64))
    loss.backward()
    assert torch.equal(indices, nearest(x, codebook))
    assert x.grad is None
    assert codebook.grad is not None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 5])
def test_kernel_loss_of_no_valid_latent_is_zero(kernel, n):
    codebook = randn(7, 3).requires_grad_()
    valid = torch.zeros(n, dtype=torch.bool)
    loss, indices = kernel_codebook_loss(
        randn(n, 3, seed=1), codebook, kernel, torch.tensor(1.0, dtype=torch.float64), valid_n=valid
    )
    loss.backward()
    assert indices.shape == (n,)
    assert loss.item() == 0
    assert codebook.grad.abs().max() == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_masked_latents_do_not_count_whatever_they_hold(kernel):
    x, codebook, width = randn(40, 3), randn(9, 3, seed=1), torch.tensor(WIDTHS[kernel], dtype=torch.float64)
    valid = random_mask(40)
    disturbed = torch.where(valid[:, None], x, 7.0)
    first = value_and_gradient(kernel_codebook_loss, x, codebook, kernel, width, valid_n=valid)
    second = value_and_gradient(kernel_codebook_loss, disturbed, codebook, kernel, width, valid_n=valid)
    kept = value_and_gradient(kernel_codebook_loss, x[valid], codebook, kernel, width)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first, kept)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_loss_allocates_nothing_of_latents_times_codes(monkeypatch, kernel):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 2**17)
    n, k = 2048, 2048
    x, codebook = randn(n, 8, dtype=torch.float32), randn(k, 8, seed=1, dtype=torch.float32).requires_grad_()

    def forward_and_backward():
        kernel_codebook_loss(x, codebook, kernel, torch.tensor(1.0))[0].backward()

    assert largest_allocation(forward_and_backward) < n * k * 4 / 16


def test_largest_allocation_sees_what_forward_and_backward_allocate():
    x = torch.ones(300, 400, requires_grad=True)
    bytes_of_x = x.numel() * 4

    def outer_product():
        (x[:, :1] * x[0]).square().sum().backward()

    assert largest_allocation(outer_product) == bytes_of_x
    assert largest_allocation(lambda: torch.empty(1000)) == 4000
    assert largest_allocation(lambda: None) == 0


def test_masked_mse_agrees_with_numpy():
    a, b, valid = randn(20, 3), randn(20, 3, seed=1), random_mask(20)
    assert masked_mse(a, b).item() == pytest.approx(np.square(a.numpy() - b.numpy()).mean())
    kept = valid.numpy()
    assert masked_mse(a, b, valid).item() == pytest.approx(np.square(a.numpy()[kept] - b.numpy()[kept]).mean())
    torch.testing.assert_close(masked_mse(a, b, torch.ones(20, dtype=torch.bool)), F.mse_loss(a, b))


@pytest.mark.parametrize("valid", [None, random_mask(6), torch.zeros(6, dtype=torch.bool)])
def test_masked_mse_gradient(valid):
    a, b = randn(6, 3).requires_grad_(), randn(6, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: masked_mse(a, b, valid), (a, b))


@pytest.mark.parametrize(
    ("n", "valid"), [(0, None), (0, torch.zeros(0, dtype=torch.bool)), (4, torch.zeros(4, dtype=torch.bool))]
)
def test_masked_mse_of_nothing_is_zero(n, valid):
    a = randn(n, 3).requires_grad_()
    loss = masked_mse(a, randn(n, 3, seed=1), valid)
    loss.backward()
    assert loss.item() == 0
    assert a.grad.abs().sum() == 0


@given(k=st.integers(1, 20), d=st.integers(1, 12), seed=st.integers(0, 9999), scale=st.floats(0.01, 100))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_orthogonal_loss_agrees_with_the_explicit_gram_matrix(k, d, seed, scale):
    codebook = randn(k, d, seed=seed) * scale
    unit = codebook.numpy() / np.linalg.norm(codebook.numpy(), axis=1, keepdims=True)
    expected = (np.square(unit @ unit.T).sum() - k) / k**2
    assert orthogonal_loss(codebook).item() == pytest.approx(expected, abs=1e-10)


def test_orthogonal_loss_at_its_bounds():
    assert orthogonal_loss(3 * torch.eye(5, 8)).item() == pytest.approx(0, abs=1e-7)
    assert orthogonal_loss(torch.ones(5, 8)).item() == pytest.approx((25 - 5) / 25)


def test_orthogonal_loss_gradient():
    assert torch.autograd.gradcheck(orthogonal_loss, (randn(7, 3).requires_grad_(),))


def test_orthogonal_loss_never_builds_codes_times_codes():
    codebook = randn(4000, 4, dtype=torch.float32).requires_grad_()
    assert largest_allocation(lambda: orthogonal_loss(codebook).backward()) < 4000 * 4000 * 4 / 100
