import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare

from driftvq import CVQ

FAR = 100.0


def with_codes(codes: torch.Tensor, **options: object) -> CVQ:
    vq = CVQ(dim=codes.shape[1], codebook_size=len(codes), **options)
    vq.set_codebook_(codes)
    return vq


def test_shares_and_pulls_follow_the_formula() -> None:
    torch.manual_seed(0)
    vq = with_codes(torch.randn(16, 3), anchors="closest", decay=0.9).double()
    vq.book.share.uniform_(0, 0.01)
    z = torch.randn(50, 3, dtype=torch.float64)
    share, codes = vq.book.share.numpy().copy(), vq.codebook.detach().numpy().copy()
    indices = vq(z).indices.numpy()
    share = 0.9 * share + 0.1 * np.bincount(indices, minlength=16) / 50
    pull = np.exp(-share * 16 * 10 / 0.1 - 1e-3)[:, None]
    anchors = z.numpy()[((codes[:, None] - z.numpy()[None]) ** 2).sum(-1).argmin(axis=1)]
    np.testing.assert_allclose(vq.book.share, share)
    np.testing.assert_allclose(vq.codebook.detach(), (1 - pull) * codes + pull * anchors)
    assert 0.01 < pull.max() < 0.99 or pull.max() > pull.min()


def test_probabilistic_anchors_are_drawn_by_distance() -> None:
    torch.manual_seed(0)
    codes = torch.zeros(20000, 2)
    codes[0] = FAR
    vq = with_codes(codes, anchors="probabilistic")
    vq.book.share.zero_()
    z = torch.randn(5, 2)
    vq(z)
    chosen = torch.cdist(vq.codebook.detach()[1:], z).argmin(dim=1).bincount(minlength=5).double().numpy()
    p = softmax(-z.square().sum(dim=1).double().numpy())
    # One code of the many at 0 was selected, and stays nearby.
    assert chisquare(chosen, p / p.sum() * chosen.sum()).pvalue > 1e-3


def test_random_anchors_spread_codes_over_the_batch() -> None:
    torch.manual_seed(0)
    vq = with_codes(torch.full((8, 2), FAR), anchors="random")
    vq.book.share.zero_()
    z = torch.randn(8, 2)
    vq(z)
    distances = torch.cdist(vq.codebook.detach()[1:], z).min(dim=1)
    assert len(distances.indices.unique()) >= 6
    assert (distances.values < 0.5).all()


def test_a_code_in_use_is_left_to_the_gradient() -> None:
    vq = with_codes(torch.tensor([[0.0, 0.0], [5.0, 5.0]]))
    before = vq.codebook.detach().clone()
    vq(torch.tensor([[0.2, 0.0], [5.0, 4.8]]))
    assert torch.equal(vq.codebook, before)


def test_refuses_unknown_anchors() -> None:
    with pytest.raises(ValueError, match="anchors must be one of 'probabilistic', 'closest', 'random', got 'near'"):
        CVQ(dim=2, codebook_size=4, anchors="near")


def test_a_batch_without_latents_pulls_no_code() -> None:
    torch.manual_seed(0)
    vq = with_codes(torch.randn(16, 3))
    vq(torch.randn(50, 3))
    codes, share = vq.codebook.detach().clone(), vq.book.share.clone()
    vq(torch.randn(1, 9, 3), torch.zeros(1, 9, dtype=torch.bool))
    vq(torch.zeros(0, 3))
    assert torch.equal(vq.codebook, codes)
    assert torch.equal(vq.book.share, share)
