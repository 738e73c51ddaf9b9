import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import entropy

from driftvq.functional import count_codes, perplexity, usage

SIZE = 13
INDICES = hnp.arrays(
    np.int64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9), elements=st.integers(-1, SIZE - 1)
)
COUNTS = hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 10**9))
FEW = settings(max_examples=60, deadline=None, derandomize=True)


@given(INDICES)
@FEW
def test_counts_agree_with_numpy(indices):
    counts = count_codes(torch.from_numpy(indices), SIZE)
    assert counts.dtype == torch.int64
    np.testing.assert_array_equal(counts.numpy(), np.bincount(indices[indices >= 0], minlength=SIZE))


@given(COUNTS)
@FEW
def test_usage_agrees_with_numpy(counts):
    assert usage(torch.from_numpy(counts)).item() == pytest.approx(np.count_nonzero(counts) / len(counts))


@given(COUNTS)
@FEW
def test_perplexity_agrees_with_scipy(counts):
    expected = np.exp(entropy(counts)) if counts.sum() else 0.0
    assert perplexity(torch.from_numpy(counts)).item() == pytest.approx(expected, rel=1e-10)


@given(COUNTS)
@FEW
def test_perplexity_lies_between_one_and_the_number_of_used_codes(counts):
    used = np.count_nonzero(counts)
    value = perplexity(torch.from_numpy(counts)).item()
    assert min(used, 1) - 1e-9 <= value <= used + 1e-9


def test_masked_positions_are_not_counted():
    indices = torch.tensor([[0, -1, 2], [-1, 2, -1]])
    assert count_codes(indices, 4).tolist() == [1, 0, 2, 0]
    assert count_codes(torch.full((5,), -1), 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_counts_of_any_integer_type_and_layout(dtype):
    indices = torch.tensor([[0, 1], [1, 1]], dtype=dtype)
    assert count_codes(indices.t(), 2).tolist() == [1, 3]


def test_an_index_beyond_the_codebook_is_refused():
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        count_codes(torch.tensor([3]), 3)


def test_known_values():
    assert perplexity(torch.tensor([4, 4, 4, 4])).item() == pytest.approx(4)
    assert perplexity(torch.tensor([0, 9, 0])).item() == pytest.approx(1)
    assert perplexity(torch.zeros(3, dtype=torch.int64)).item() == 0
    assert usage(torch.tensor([0, 1, 5, 0])).item() == 0.5


def test_perplexity_of_averaged_counts():
    counts = torch.tensor([0.5, 0.25, 0.25])
    assert perplexity(100 * counts).item() == pytest.approx(np.exp(entropy(counts.numpy())), rel=1e-6)
