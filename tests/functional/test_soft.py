import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import chisquare, entropy

from driftvq.functional import blocks, gumbel_softmax, index_softmax, soft_usage
from driftvq.functional.soft import COLUMN, ROW, gumbel, keys
from tests.memory import largest_allocation


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def logits_case(n=70, k=9, d=4, v=5, seed=0, dtype=torch.float64):
    shapes = ((n, d), (k, d), (k,), (k, v))
    return tuple(randn(*shape, seed=10 * seed + i, dtype=dtype).requires_grad_() for i, shape in enumerate(shapes))


def gumbel_noise(n, k, seed, dtype=torch.float64):
    """The noise of :func:`gumbel_softmax`, all of it at once."""
    return gumbel(keys(n, torch.tensor(seed), ROW), keys(k, torch.tensor(seed), COLUMN), dtype)


def mixture(z, weight, bias, codebook, temperature, noise):
    return ((z @ weight.t() + bias + noise) / temperature).softmax(dim=1) @ codebook


@pytest.mark.parametrize("elements", [1, 300, 2**21])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_gumbel_agrees_with_dense_autograd(monkeypatch, elements, temperature):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    inputs, upstream = logits_case(), randn(70, 5, seed=99)
    indices, codes = gumbel_softmax(*inputs, temperature, torch.tensor(3))
    noise = gumbel_noise(70, 9, 3)
    z, weight, bias, codebook = inputs
    np.testing.assert_array_equal(indices.numpy(), (z @ weight.t() + bias + noise).detach().numpy().argmax(axis=1))
    assert torch.equal(codes, codebook[indices])
    ours = torch.autograd.grad(codes, inputs, upstream)
    dense = torch.autograd.grad(mixture(*inputs, temperature, noise), inputs, upstream)
    torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-11)


@given(n=st.integers(0, 30), k=st.integers(1, 20), d=st.integers(1, 6), v=st.integers(1, 6), seed=st.integers(0, 9999))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_gumbel_of_any_shape(n, k, d, v, seed):
    inputs, upstream = logits_case(n, k, d, v, seed), randn(n, v, seed=seed + 7)
    indices, codes = gumbel_softmax(*inputs, 0.7, torch.tensor(seed))
    assert indices.shape == (n,)
    ours = torch.autograd.grad(codes, inputs, upstream)
    dense = torch.autograd.grad(mixture(*inputs, 0.7, gumbel_noise(n, k, seed)), inputs, upstream)
    torch.testing.assert_close(ours, dense, rtol=1e-8, atol=1e-10)


def test_gumbel_gradient_agrees_with_finite_differences():
    inputs, upstream = logits_case(n=6, k=5, d=3, v=2), randn(6, 2, seed=99)
    _, codes = gumbel_softmax(*inputs, 0.8, torch.tensor(1))
    gradients = torch.autograd.grad(codes, inputs, upstream)
    noise, step = gumbel_noise(6, 5, 1).numpy(), 1e-6
    plain = [tensor.detach().numpy() for tensor in inputs]

    def objective(z, weight, bias, codebook):
        return (softmax((z @ weight.T + bias + noise) / 0.8, axis=1) @ codebook * upstream.numpy()).sum()

    for i, gradient in enumerate(gradients):
        direction = np.random.default_rng(i).normal(size=plain[i].shape)
        ahead, behind = ([*plain[:i], plain[i] + s * direction, *plain[i + 1 :]] for s in (step, -step))
        slope = (objective(*ahead) - objective(*behind)) / (2 * step)
        assert (gradient.numpy() * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_gumbel_is_a_function_of_its_seed():
    inputs = logits_case()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = gumbel_softmax(*inputs, 1.0, torch.tensor(5))[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, gumbel_softmax(*inputs, 1.0, torch.tensor(5))[0])
    assert not torch.equal(first, gumbel_softmax(*inputs, 1.0, torch.tensor(6))[0])


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sampled_frequencies_are_the_softmax_of_the_logits(temperature, dtype):
    n, k = 20_000, 6
    _, weight, bias, codebook = logits_case(k=k, d=3, dtype=dtype)
    z = randn(1, 3, seed=8, dtype=dtype)
    indices, _ = gumbel_softmax(z.expand(n, 3), weight, bias, codebook, temperature, torch.tensor(11))
    expected = n * softmax((z @ weight.t() + bias).detach().double().numpy()[0])
    assert expected.min() > 5
    assert chisquare(np.bincount(indices.numpy(), minlength=k), expected, sum_check=False).pvalue > 1e-3


def test_gumbel_rows_are_drawn_independently(monkeypatch):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 1)
    z, weight, bias, codebook = torch.zeros(640, 2), torch.zeros(50, 2), torch.zeros(50), torch.zeros(50, 1)
    drawn = gumbel_softmax(z, weight, bias, codebook, 1.0, torch.tensor(0))[0].reshape(-1, blocks.MIN_BLOCK_ROWS)
    assert len(drawn.unique(dim=0)) == len(drawn)
    assert len(drawn.unique()) == 50


def dense_usage(z, weight, bias, share):
    p = (z @ weight.t() + bias).softmax(dim=1)
    return share @ p, -(share @ (p * p.log()).sum(dim=1))


@pytest.mark.parametrize("elements", [1, 300, 2**21])
@pytest.mark.parametrize("uniform", [True, False])
def test_usage_agrees_with_scipy_and_dense_autograd(monkeypatch, elements, uniform):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    inputs = logits_case()[:3]
    share = torch.full((70,), 1 / 70).double() if uniform else randn(70, seed=5).square()
    mean, mean_entropy = soft_usage(*inputs, share)
    p = softmax((inputs[0] @ inputs[1].t() + inputs[2]).detach().numpy(), axis=1)
    np.testing.assert_allclose(mean.detach().numpy(), share.numpy() @ p)
    np.testing.assert_allclose(mean_entropy.item(), share.numpy() @ entropy(p, axis=1))
    upstream = randn(9, seed=6), torch.tensor(1.7, dtype=torch.float64)
    ours = torch.autograd.grad((mean, mean_entropy), inputs, upstream)
    dense = torch.autograd.grad(dense_usage(*inputs, share), inputs, upstream)
    torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("output", [0, 1])
def test_one_output_alone_is_differentiable(output):
    inputs, share = logits_case()[:3], randn(70, seed=5).square()
    ours = torch.autograd.grad(soft_usage(*inputs, share)[output].square().sum(), inputs)
    dense = torch.autograd.grad(dense_usage(*inputs, share)[output].square().sum(), inputs)
    torch.testing.assert_close(ours, dense)


@pytest.mark.parametrize("elements", [1, 2**21])
def test_usage_gradcheck(monkeypatch, elements):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    monkeypatch.setattr(blocks, "MIN_BLOCK_ROWS", 3)
    inputs = logits_case(n=7, k=4, d=2)[:3]
    share = randn(7, seed=5).square()
    assert torch.autograd.gradcheck(lambda *args: soft_usage(*args, share), inputs)


def test_usage_of_certain_assignments():
    z, weight = torch.eye(3), 1e4 * torch.eye(3)
    z.requires_grad_()
    mean, mean_entropy = soft_usage(z, weight, torch.zeros(3), torch.full((3,), 1 / 3))
    (mean.sum() + mean_entropy).backward()
    torch.testing.assert_close(mean.detach(), torch.full((3,), 1 / 3))
    assert mean_entropy.item() == 0
    assert z.grad.isfinite().all()


def test_usage_of_even_assignments():
    mean, mean_entropy = soft_usage(torch.zeros(4, 2), torch.ones(8, 2), torch.zeros(8), torch.full((4,), 0.25))
    torch.testing.assert_close(mean, torch.full((8,), 1 / 8))
    assert mean_entropy.item() == pytest.approx(np.log(8))


def test_usage_of_no_latents():
    inputs = logits_case(n=0)[:3]
    mean, mean_entropy = soft_usage(*inputs, torch.zeros(0, dtype=torch.float64))
    assert mean.abs().sum() == 0
    assert mean_entropy == 0
    gradients = torch.autograd.grad(mean.sum() + mean_entropy, inputs)
    assert all(gradient.abs().sum() == 0 for gradient in gradients)


@pytest.mark.parametrize("name", ["gumbel", "usage"])
def test_nothing_of_latents_times_codes_is_allocated(monkeypatch, name):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 2**17)
    n, k = 2048, 2048
    z, weight, bias, codebook = logits_case(n, k, dtype=torch.float32)

    def forward_and_backward():
        if name == "gumbel":
            gumbel_softmax(z, weight, bias, codebook, 1.0, torch.tensor(0))[1].sum().backward()
        else:
            soft_usage(z, weight, bias, torch.full((n,), 1 / n))[1].backward()

    assert largest_allocation(forward_and_backward) < n * k * 4 / 16


def index_softmax_by_autograd(z: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition with all of N × K in memory: the output, and the assignment p."""
    p = (z @ codes.t()).softmax(dim=1)
    hard = F.one_hot(p.argmax(dim=1), len(codes)).to(p.dtype)
    return (hard + p - p.detach()) @ codes, p


def test_output_and_gradients_of_index_softmax_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    share = torch.rand(300, dtype=torch.float64)
    wanted = torch.randn(300, 5, dtype=torch.float64)
    grads = []
    for way in ("blocks", "definition"):
        torch.manual_seed(1)
        z = torch.randn(300, 5, dtype=torch.float64, requires_grad=True)
        codes = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
        if way == "blocks":
            indices, output, mean, entropy = index_softmax(z, codes, share)
            assert torch.equal(indices, (z @ codes.t()).argmax(dim=1))
        else:
            output, p = index_softmax_by_autograd(z, codes)
            mean, entropy = share @ p, (share * torch.special.entr(p).sum(dim=1)).sum()
        loss = (output - wanted).square().sum() + 3 * (mean * torch.arange(40)).sum() + 2 * entropy
        loss.backward()
        grads.append((loss.detach(), z.grad, codes.grad))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)
