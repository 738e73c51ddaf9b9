import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare, entropy

from driftvq import GumbelVQ


def test_takes_the_highest_score_in_evaluation() -> None:
    torch.manual_seed(0)
    vq = GumbelVQ(dim=6, codebook_size=32).eval()
    x = torch.randn(100, 6)
    assert torch.equal(vq(x).indices, vq.scores(x).argmax(dim=1))


def test_samples_codes_with_the_probability_of_their_scores() -> None:
    torch.manual_seed(0)
    vq = GumbelVQ(dim=2, codebook_size=5, temperature=0.3)
    x = torch.randn(1, 2)
    indices = vq(x.expand(20000, 2)).indices
    p = softmax(vq.scores(x).detach().double().numpy()[0])
    assert chisquare(np.bincount(indices, minlength=5), p / p.sum() * 20000).pvalue > 1e-3


def test_loss_is_the_divergence_from_uniform_use() -> None:
    torch.manual_seed(0)
    vq = GumbelVQ(dim=6, codebook_size=32, kl_weight=2.0).double().eval()
    x = 5 * torch.randn(50, 6, dtype=torch.float64)
    p = softmax(vq.scores(x).detach().numpy(), axis=1)
    expected = 2 * np.mean([entropy(row, np.full(32, 1 / 32)) for row in p])
    assert vq(x).loss.item() == pytest.approx(expected)
    assert vq(torch.zeros(0, 6, dtype=torch.float64)).loss.item() == 0
    assert expected < 2 * math.log(32)


@pytest.mark.parametrize("temperature", [0, -1])
def test_refuses_a_bad_temperature(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        GumbelVQ(dim=6, codebook_size=32, temperature=temperature)
