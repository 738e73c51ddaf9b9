import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from driftvq import LFQ


def test_codes_are_the_corners_of_a_cube() -> None:
    vq = LFQ(dim=5, codebook_size=32)
    assert vq.codebook.unique(dim=0).shape == (32, 5)
    assert (vq.codebook.abs() == 1).all()


def test_selects_the_nearest_corner() -> None:
    torch.manual_seed(0)
    vq = LFQ(dim=5, codebook_size=32).eval()
    x = torch.randn(200, 5)
    assert torch.equal(vq(x).indices, torch.cdist(x, vq.codebook).argmin(dim=1))


def test_loss_matches_the_formula() -> None:
    torch.manual_seed(0)
    vq = LFQ(
        dim=4, codebook_size=16, entropy_weight=0.7, diversity_gamma=1.5, inv_temperature=3.0, commitment_weight=0.2
    ).double()
    x = torch.randn(60, 4, dtype=torch.float64)
    codes = vq.codebook.double().numpy()
    p = softmax(2 * 3 * x.numpy() @ codes.T, axis=1)
    entropies = np.mean([entropy(row) for row in p]) - 1.5 * entropy(p.mean(axis=0))
    commitment = np.mean((x.numpy() - np.where(x.numpy() > 0, 1, -1)) ** 2)
    assert vq(x).loss.item() == pytest.approx(0.7 * entropies + 0.2 * commitment)


def test_gradient_of_the_loss_by_finite_differences() -> None:
    torch.manual_seed(0)
    vq = LFQ(dim=4, codebook_size=16, inv_temperature=2.0).double()
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: vq(z).loss, (x,))


@pytest.mark.parametrize("size", [1, 48])
def test_refuses_sizes_that_are_no_power_of_two(size: int) -> None:
    with pytest.raises(ValueError, match=f"power of two, got {size}"):
        LFQ(dim=4, codebook_size=size)


def test_entropies_of_a_part_of_the_latents_are_those_of_all_on_average() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 4)
    whole, part = (
        LFQ(dim=4, codebook_size=16, entropy_fraction=f, diversity_gamma=0.0, inv_temperature=1.0) for f in (1, 0.1)
    )
    expected = whole.details(x).terms.entropy
    drawn = torch.stack([part.details(x).terms.entropy for _ in range(100)])
    assert drawn.std() > 0
    assert abs(drawn.mean() - expected) < 4 * drawn.std() / 10
    assert torch.equal(part.eval().details(x).terms.entropy, expected)


def test_terms_of_the_loss_are_not_weighted() -> None:
    torch.manual_seed(0)
    vq = LFQ(dim=4, codebook_size=16, entropy_weight=0.7, commitment_weight=0.2)
    details = vq.details(torch.randn(60, 4))
    assert torch.allclose(details.loss, 0.7 * details.terms.entropy + 0.2 * details.terms.commitment)
