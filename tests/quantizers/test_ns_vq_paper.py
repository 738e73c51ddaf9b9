import numpy as np
import pytest
import torch

from driftvq import Modified, NSVQPaper


def test_a_latent_moves_each_code_by_equation_17() -> None:
    torch.manual_seed(0)
    vq = NSVQPaper(dim=3, codebook_size=10, kmeans_init=False).double()
    torch.nn.init.normal_(vq.book.codes)
    z = torch.randn(1, 3, dtype=torch.float64)
    codes = vq.book.codes.detach().clone()
    vq(z).loss.backward()
    distance = (z - codes).square().sum(dim=1)
    w = torch.exp(-distance)
    w[distance.argmin()] = 1
    assert torch.allclose(vq.book.codes.grad, -2 / 3 * w[:, None] * (z - codes))


def test_loss_matches_the_formula() -> None:
    torch.manual_seed(0)
    vq = NSVQPaper(dim=3, codebook_size=10, kmeans_init=False, commitment_weight=0.3, bandwidth=2.0).double()
    torch.nn.init.normal_(vq.book.codes)
    z = torch.randn(40, 3, dtype=torch.float64)
    distance = ((z.numpy()[:, None] - vq.book.codes.detach().numpy()) ** 2).sum(axis=2)
    win = distance.argmin(axis=1)
    weight = np.exp(-distance / 2)
    weight[np.arange(40), win] = 1 + 0.3
    assert vq(z).loss.item() == pytest.approx((weight * distance).sum() / 120)
    won = distance.min(axis=1).mean() / 3
    assert vq.eval()(z).loss.item() == pytest.approx(1.3 * won)


def test_starts_from_k_means_with_the_papers_estimator() -> None:
    vq = NSVQPaper(dim=3, codebook_size=10)
    assert not vq.start.done
    assert vq.estimator == Modified(divisor="latents")
    assert vq.commitment_weight == 0.25


def test_bandwidth_decays_by_hand_or_by_itself_and_is_saved() -> None:
    vq = NSVQPaper(dim=3, codebook_size=10, kmeans_init=False)
    vq.book.decay_bandwidth_()
    assert vq.book.bandwidth.item() == pytest.approx(0.9)
    own = NSVQPaper(dim=3, codebook_size=10, kmeans_init=False, decay_every=2)
    for _ in range(5):
        own(torch.randn(8, 3))
    assert own.book.bandwidth.item() == pytest.approx(0.81)
    own.eval()
    own(torch.randn(8, 3))
    assert own.book.bandwidth.item() == pytest.approx(0.81)
    twin = NSVQPaper(dim=3, codebook_size=10, kmeans_init=False)
    twin.load_state_dict(own.state_dict())
    assert twin.book.bandwidth.item() == pytest.approx(0.81)
    assert twin.readings() == {"bandwidth": pytest.approx(0.81)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": 0}, "bandwidth must be positive, got 0"),
        ({"bandwidth_decay": 2}, "bandwidth_decay must lie between 0 and 1, got 2"),
        ({"decay_every": -1}, "decay_every must lie between 0 and inf, got -1"),
    ],
)
def test_refuses_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NSVQPaper(dim=3, codebook_size=10, **options)
