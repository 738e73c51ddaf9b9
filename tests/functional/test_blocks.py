"""The two steps that every walk over blocks takes: a product, and the highest value of each row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftvq.functional.blocks import highest, product


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
        np.testing.assert_allclose(product(*given).numpy(), expected + bias, atol=1e-4)
