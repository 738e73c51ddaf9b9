import numpy as np
import pytest
import torch

from driftvq import WassersteinVQ
from tests.functional.test_transport import cloud, distance


def test_loss_is_the_sum_of_its_three_terms() -> None:
    torch.manual_seed(0)
    vq = WassersteinVQ(dim=3, codebook_size=16, wasserstein_weight=0.7, commitment_weight=0.3).double()
    codes = cloud(16, 3, 0)
    vq.set_codebook_(torch.tensor(codes))
    z = cloud(50, 3, 1)
    nearest = ((z[:, None] - codes[None]) ** 2).sum(-1).min(axis=1)
    expected = 1.3 * nearest.mean() / 3 + 0.7 * distance(codes, z)
    assert vq(torch.tensor(z)).loss.item() == pytest.approx(expected)
    assert vq.eval()(torch.tensor(z)).loss.item() == pytest.approx(1.3 * nearest.mean() / 3)


def test_no_gradient_of_the_distance_reaches_the_latents() -> None:
    torch.manual_seed(0)
    vq = WassersteinVQ(dim=3, codebook_size=16, commitment_weight=0)
    z = torch.randn(20, 3, requires_grad=True)
    vq(z).loss.backward()
    assert z.grad is None or not z.grad.any()
    assert (vq.book.codes.grad.abs().sum(dim=1) > 0).all()


def test_codes_take_mean_and_covariance_of_the_latents() -> None:
    torch.manual_seed(0)
    vq = WassersteinVQ(dim=3, codebook_size=64, wasserstein_weight=30.0)
    z = torch.tensor(cloud(2000, 3, 2), dtype=torch.float32)
    optimizer = torch.optim.Adam(vq.parameters(), 0.03)
    for _ in range(400):
        optimizer.zero_grad()
        vq(z).loss.backward()
        optimizer.step()
    np.testing.assert_allclose(vq.codebook.detach().mean(0), z.mean(0), atol=0.1)
    np.testing.assert_allclose(vq.codebook.detach().t().cov(correction=0), z.t().cov(), atol=0.3)
