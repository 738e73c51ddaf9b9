"""The two steps that every walk over blocks takes, a product and the highest value of each row; and a linear layer."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftvq.functional.blocks import highest, linear, product


@given(
    st.integers(0, 5),
    st.sampled_from([1, 2, 7, 96, 128, 384, 1000]),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_highest_is_the_first_of_the_largest(rows, columns, seed, dtype):
    values = torch.randint(-3, 3, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(dtype)
    found = highest(values)
    assert found.dtype == torch.int64
    assert np.array_equal(found.numpy(), values.double().numpy().argmax(axis=1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_highest_of_what_is_no_number_is_where_it_is(value):
    values = torch.zeros(3, 256)
    values[1, 200] = value
    values[2] = -float("inf")
    assert highest(values).tolist() == [0, 200, 0]


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("one_dnn", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k", "d"), [(64, 1000, 64), (3, 1, 1), (0, 5, 3), (5, 0, 3), (33, 8, 0)])
def test_product_is_the_sum_over_dimensions(n, k, d, dtype, one_dnn):
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.normal(size=size) for size in ((n, d), (k, d), k))
    expected = np.einsum("nd,kd->nk", x, weight)
    given = [torch.tensor(each, dtype=dtype) for each in (x, weight, bias)]
    by_columns = [each.t().contiguous().t() for each in given[:2]]
    with torch.backends.mkldnn.flags(enabled=one_dnn):
        for each in (given[:2], by_columns):
            found = product(*each)
            assert found.dtype == dtype
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-4 if dtype == torch.float32 else 1e-12)
        apart = torch.tensor(np.stack([bias, bias]), dtype=dtype).t().contiguous()[:, 0]
        for each in (given[2], apart):
            np.testing.assert_allclose(product(*given[:2], each).numpy(), expected + bias, atol=1e-4)
            np.testing.assert_allclose(product(*given[:2], each, -0.5).numpy(), expected - 0.5 * bias, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("one_dnn", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("n", "k", "d"), [(40, 24, 16), (1, 3, 2), (0, 5, 3), (5, 0, 3)])
def test_linear_has_the_gradients_of_the_sum_over_dimensions(n, k, d, with_bias, one_dnn):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(*size, generator=generator) for size in ((n, d), (k, d), (k,))][: 2 + with_bias]
    towards = torch.randn(n, k, generator=generator)

    def gradients(values, function):
        """Of a sum of squares, and of the length of that gradient: the second derivatives too."""
        values = [one.clone().requires_grad_() for one in values]
        loss = (function(*values) * towards.to(values[0])).sum() + function(*values).square().sum()
        first = torch.autograd.grad(loss, values, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), values)
        return [loss, *first, *second]

    def oracle(x, weight, *bias):
        return torch.einsum("nd,kd->nk", x, weight) + (bias[0] if bias else 0)

    expected = gradients([one.double() for one in given], oracle)
    with torch.backends.mkldnn.flags(enabled=one_dnn):
        found = gradients(given, linear)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)


def test_linear_can_be_mapped_cast_and_compiled():
    x, weight = torch.randn(3, 6, 4), torch.randn(5, 4)
    expected = torch.einsum("bnd,kd->bnk", x, weight)
    torch.testing.assert_close(torch.func.vmap(linear, in_dims=(0, None))(x, weight), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x[0], weight).dtype == torch.bfloat16
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x[0], weight), expected[0])
