import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from driftvq import BSQ


def test_codes_are_the_corners_of_a_cube_on_the_sphere() -> None:
    vq = BSQ(dim=5, codebook_size=32)
    assert vq.codebook.unique(dim=0).shape == (32, 5)
    torch.testing.assert_close(vq.codebook.norm(dim=1), torch.ones(32))


def test_selects_the_nearest_corner_whatever_the_length() -> None:
    torch.manual_seed(0)
    vq = BSQ(dim=5, codebook_size=32).eval()
    x = torch.randn(200, 5)
    assert torch.equal(vq(x).indices, torch.cdist(x / x.norm(dim=1, keepdim=True), vq.codebook).argmin(dim=1))
    assert torch.equal(vq(x).indices, vq(1000 * x).indices)


def test_loss_matches_the_formula() -> None:
    torch.manual_seed(0)
    vq = BSQ(
        dim=4, codebook_size=16, entropy_weight=0.7, diversity_gamma=1.5, inv_temperature=3.0, commitment_weight=0.2
    ).double()
    x = torch.randn(60, 4, dtype=torch.float64)
    unit = x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True)
    corners = np.where(vq.codebook.numpy() > 0, 0.5, -0.5)
    p = softmax(2 * 3 * unit @ corners.T, axis=1)
    bits = p @ (corners > 0)  # the probability of each bit, from all codes
    mean_bits = bits.mean(axis=0)
    of_mean = sum(entropy([share, 1 - share]) for share in mean_bits)
    entropies = np.mean([entropy(row) for row in p]) - 1.5 * of_mean
    commitment = np.mean((unit - np.where(unit > 0, 0.5, -0.5)) ** 2)
    assert vq(x).loss.item() == pytest.approx(0.7 * entropies + 0.2 * commitment)


def test_gradient_of_the_loss_by_finite_differences() -> None:
    torch.manual_seed(0)
    vq = BSQ(dim=4, codebook_size=16, inv_temperature=2.0).double()
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: vq(z).loss, (x,))
