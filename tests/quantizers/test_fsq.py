import itertools
import math

import numpy as np
import pytest
import torch

from driftvq import FSQ
from driftvq.quantizers.fixed_grids import default_levels


@pytest.mark.parametrize("levels", [(8, 5, 5, 5), (3, 4), (7,)])
def test_codebook_is_the_product_of_the_levels(levels: tuple[int, ...]) -> None:
    vq = FSQ(dim=len(levels), levels=levels)
    grids = [(np.arange(level) - level // 2) / (level // 2) for level in levels]
    expected = {tuple(np.float32(point)) for point in itertools.product(*grids)}
    assert {tuple(code) for code in vq.codebook.numpy()} == expected
    assert vq.codebook_size == math.prod(levels) == len(expected)


def test_rounds_the_bounded_latent_to_the_nearest_level() -> None:
    torch.manual_seed(0)
    vq = FSQ(dim=3, levels=(8, 5, 4)).double().eval()
    z = 2 * torch.randn(500, 3, dtype=torch.float64)
    levels = np.array([8, 5, 4])
    half = (levels - 1) * 1.001 / 2
    offset = np.where(levels % 2 == 0, 0.5, 0)
    bounded = np.tanh(z.numpy() + np.arctanh(offset / half)) * half - offset
    quantized, indices, loss = vq(z)
    np.testing.assert_allclose(quantized, np.round(bounded) / (levels // 2))
    np.testing.assert_allclose(vq.codebook[indices], quantized, atol=1e-7)
    assert loss == 0


def test_every_code_can_be_reached() -> None:
    vq = FSQ(dim=2, levels=(8, 5)).eval()
    axis = torch.linspace(-9, 9, 400)
    assert vq(torch.cartesian_prod(axis, axis)).indices.unique().numel() == 40


@pytest.mark.parametrize("size", [64, 1000, 1024, 8192, 65536, 262144])
def test_default_levels_multiply_to_the_codebook_size(size: int) -> None:
    levels = default_levels(size)
    assert levels is not None
    assert math.prod(levels) == size
    assert 3 <= min(levels) <= max(levels) <= 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codebook_size": 11}, "product of numbers from 3 to 8, got 11"),
        ({"levels": (8, 2)}, r"levels must each be at least 3, got \(8, 2\)"),
        ({"levels": (8, 5), "codebook_size": 64}, "codebook_size 64 is not the product"),
        ({}, "codebook_size must be a whole number of at least 1, got None"),
    ],
)
def test_refuses_bad_sizes(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FSQ(dim=4, **options)


def test_ifsq_fills_the_levels_equally() -> None:
    """Its bound is the sigmoid of its paper; unit Gaussian latents reach every level about as often."""
    torch.manual_seed(0)
    z = torch.randn(100_000, 1, dtype=torch.float64)
    spread = {}
    for slope in (1.0, 0.8):
        vq = FSQ(dim=1, levels=(9,), slope=slope).double()
        indices = vq(z).indices
        spread[slope] = indices.bincount(minlength=9)[1:-1].double().std()
        if slope == 0.8:
            bounded = (2 * torch.sigmoid(1.6 * z[:, 0]) - 1) * 4 * 1.001
            assert torch.equal(indices, bounded.round().to(torch.int64) + 4)
    assert spread[0.8] < spread[1.0] / 2


def test_the_symmetric_grid_matches_the_formula() -> None:
    torch.manual_seed(0)
    vq = FSQ(dim=2, levels=(8, 5), symmetric=True).eval()
    x = 2 * torch.randn(300, 2)
    steps = np.array([7, 4])
    expected = 2 * np.round((np.tanh(x.numpy()) + 1) / 2 * steps) / steps - 1
    assert np.allclose(vq(x).quantized.numpy(), expected, atol=1e-6)
    assert torch.allclose(vq.codebook.amax(dim=0), torch.ones(2))
    assert torch.allclose(vq.codebook.amin(dim=0), -torch.ones(2))
    assert torch.equal(vq.indices_to_codes(vq(x).indices), vq(x).quantized)


def test_a_level_of_a_residual_divides_a_step_of_the_one_before() -> None:
    vq = FSQ(dim=1, levels=(5,))
    vq.refine_(1)
    assert vq.codebook.flatten().tolist() == [-0.25, -0.125, 0, 0.125, 0.25]
    x = torch.tensor([[-0.3], [0.07], [0.05]], requires_grad=True)
    quantized, indices, _ = vq(x)
    assert indices.tolist() == [0, 3, 2]
    (quantized * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert x.grad.flatten().tolist() == [1, 2, 3]


def test_many_levels_end_at_the_last_one() -> None:
    vq = FSQ(2, levels=(1025, 3)).eval()
    quantized, indices, _ = vq(torch.tensor([[50.0, 0.0], [50.0, 50.0], [-50.0, -50.0]]))
    assert indices.tolist() == [1024 + 1025, 1024 + 2 * 1025, 0]
    assert torch.equal(vq.indices_to_codes(indices), quantized)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("module", [torch.float32, torch.float64])
def test_codes_have_the_precision_of_the_module_whatever_the_default_is(
    default: torch.dtype, module: torch.dtype
) -> None:
    vq, x = FSQ(6, levels=(7, 7, 7)).to(module).eval(), torch.randn(20, 6, dtype=module)
    torch.set_default_dtype(default)
    try:
        quantized, indices, _ = vq(x)
        codes = vq.indices_to_codes(indices)
    finally:
        torch.set_default_dtype(torch.float32)
    assert codes.dtype == module
    assert torch.equal(codes, quantized)
