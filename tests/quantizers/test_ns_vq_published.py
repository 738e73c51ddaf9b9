import pytest
import torch

from driftvq import Modified, NSVQPublished


def test_scales_and_clamps_the_softmax() -> None:
    torch.manual_seed(0)
    vq = NSVQPublished(dim=3, codebook_size=200, bandwidth=0.8).double()
    torch.nn.init.normal_(vq.book.codes)
    z = torch.randn(5, 3, dtype=torch.float64)
    codes = vq.book.codes.detach().clone()
    vq(z).loss.backward()
    distance = torch.cdist(z, codes).square()
    w = (torch.softmax(-distance / 0.8, dim=1) * 2).clamp(max=1)
    w.scatter_(1, distance.argmin(dim=1, keepdim=True), 1)
    expected = 2 / 15 * (w.sum(dim=0)[:, None] * codes - w.T @ z)
    assert torch.allclose(vq.book.codes.grad, expected)


def test_starts_uniform_with_the_estimator_of_the_published_code() -> None:
    vq = NSVQPublished(dim=64, codebook_size=50)
    assert vq.start.done
    assert vq.codebook.abs().max() <= 1 / 50
    assert vq.codebook.std().item() == pytest.approx(1 / 50 / 3**0.5, rel=0.05)
    assert vq.estimator == Modified(divisor="elements")


def test_the_temperature_is_halved_each_epoch() -> None:
    vq = NSVQPublished(dim=3, codebook_size=10, decay_every=3)
    for _ in range(7):
        vq(torch.randn(8, 3))
    assert vq.readings() == {"bandwidth": 0.25}
