import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import correlate2d

from driftvq.functional import winograd, winograd_conv3x3


def inputs(n: int, c: int, o: int, h: int, w: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(h * 100 + w)
    x = torch.randn(n, c, h, w, generator=generator, dtype=torch.float64)
    return x, torch.randn(o, c, 3, 3, generator=generator, dtype=torch.float64)


def test_equals_the_sum_over_shifted_inputs_of_scipy() -> None:
    x, weight = inputs(2, 3, 4, 7, 9)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = [
        [sum(correlate2d(padded[n, c], weight[o, c].numpy(), "valid") for c in range(3)) for o in range(4)]
        for n in range(2)
    ]
    assert np.allclose(winograd_conv3x3(x, weight).numpy(), expected, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(0, 5), c=st.integers(1, 9), o=st.integers(1, 9), h=st.integers(1, 13), w=st.integers(1, 13))
def test_values_and_gradients_equal_the_direct_convolution(n: int, c: int, o: int, h: int, w: int) -> None:
    x, weight = (t.requires_grad_() for t in inputs(n, c, o, h, w))
    ours, direct = winograd_conv3x3(x, weight), F.conv2d(x, weight, padding=1)
    assert torch.allclose(ours, direct, atol=1e-10)
    grad = torch.randn(direct.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (x, weight), grad), torch.autograd.grad(direct, (x, weight), grad), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-9)


def test_gradients_equal_finite_differences() -> None:
    x, weight = (t.requires_grad_() for t in inputs(2, 2, 3, 5, 6))
    assert torch.autograd.gradcheck(winograd_conv3x3, (x, weight))


def test_several_blocks_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = (t.requires_grad_() for t in inputs(5, 4, 4, 8, 8))
    whole = winograd_conv3x3(x, weight)
    grads = torch.autograd.grad(whole.square().sum(), (x, weight))
    monkeypatch.setattr("driftvq.functional.winograd.BLOCK_VALUES", 1)
    blocked = winograd_conv3x3(x, weight)
    assert torch.allclose(whole, blocked, atol=1e-12)
    for one, many in zip(grads, torch.autograd.grad(blocked.square().sum(), (x, weight)), strict=True):
        assert torch.allclose(one, many, atol=1e-10)


def test_holds_one_block_at_a_time_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    original = winograd._input_points

    def spy(x: torch.Tensor) -> torch.Tensor:
        assert all(points() is None for points in made[:-1])
        points = original(x)
        made.append(weakref.ref(points))
        return points

    monkeypatch.setattr(winograd, "_input_points", spy)
    monkeypatch.setattr(winograd, "BLOCK_VALUES", 1)
    x, weight = inputs(5, 4, 4, 8, 8)
    with torch.no_grad():
        winograd_conv3x3(x, weight.requires_grad_())
    assert len(made) == 5


def test_loses_few_digits_in_single_precision() -> None:
    x, weight = inputs(4, 64, 64, 16, 16)
    exact = F.conv2d(x, weight, padding=1)
    error = (winograd_conv3x3(x.float(), weight.float()) - exact).norm() / exact.norm()
    assert error < 5e-6


def test_refuses_other_kernels() -> None:
    with pytest.raises(ValueError, match=r"weight must be \(o, c, 3, 3\), got shape \(2, 2, 5, 5\)"):
        winograd_conv3x3(torch.zeros(1, 2, 8, 8), torch.zeros(2, 2, 5, 5))
