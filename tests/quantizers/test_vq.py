import numpy as np
import pytest
import torch
from torch import nn

from driftvq import VQ


def latents(n: int = 200, dim: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_loss_and_gradients_match_the_formula() -> None:
    vq = VQ(dim=6, codebook_size=16, commitment_weight=0.3).double()
    torch.nn.init.normal_(vq.book.codes)
    z = latents().requires_grad_()
    _, indices, loss = vq(z)
    loss.backward()
    zn, cn, win = z.detach().numpy(), vq.book.codes.detach().numpy(), indices.numpy()
    error = zn - cn[win]
    assert loss.item() == pytest.approx(1.3 * np.mean(error**2))
    np.testing.assert_allclose(z.grad, 0.3 * 2 * error / error.size)
    expected = np.zeros_like(cn)
    np.add.at(expected, win, -2 * error / error.size)
    np.testing.assert_allclose(vq.book.codes.grad, expected, atol=1e-15)


def test_straight_through_hands_on_the_gradient_unchanged() -> None:
    vq = VQ(dim=6, codebook_size=16).double()
    z, weight = latents().requires_grad_(), latents(seed=1)
    (vq(z).quantized * weight).sum().backward()
    assert torch.equal(z.grad, weight)
    assert vq.book.codes.grad is None


def test_restart_moves_exactly_the_codes_that_were_not_selected_for_long_enough() -> None:
    vq = VQ(dim=2, codebook_size=4, restart_after=3)
    with torch.no_grad():
        vq.book.codes.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [100.0, 0.0], [200.0, 0.0]]))
    x = torch.tensor([[0.0, 0.1], [1.0, 0.1]]).repeat(8, 1)
    for _ in range(3):
        before = vq.book.codes.clone()
        vq(x)
        assert torch.equal(vq.book.codes, before)
    assert vq.code_age.tolist() == [0, 0, 3, 3]
    vq(x)
    assert torch.equal(vq.book.codes[:2], before[:2])
    assert all(any(torch.equal(code, row) for row in x) for code in vq.book.codes[2:])


def test_restart_uses_distinct_latents_and_leaves_the_rest_for_later() -> None:
    vq = VQ(dim=1, codebook_size=6, restart_after=1)
    with torch.no_grad():
        vq.book.codes.copy_(torch.tensor([0.0, 100, 200, 300, 400, 500])[:, None])
    vq(torch.tensor([[0.1]]))
    vq(torch.tensor([[0.2], [0.3]]))
    moved = (vq.book.codes[1:, 0] < 50).sum()
    assert moved == 2
    assert vq.book.codes[1:, 0][vq.book.codes[1:, 0] < 50].unique().numel() == 2


def test_orthogonal_weight_adds_its_term() -> None:
    plain, regularised = VQ(dim=6, codebook_size=16), VQ(dim=6, codebook_size=16, orthogonal_weight=2.0)
    regularised.load_state_dict(plain.state_dict())
    unit = torch.nn.functional.normalize(plain.book.codes.detach(), dim=1)
    term = ((unit @ unit.T).square().sum() - 16) / 16**2
    z = latents().float()
    assert (regularised(z).loss - plain(z).loss).item() == pytest.approx(2 * term.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"commitment_weight": -1}, "commitment_weight must lie between 0 and inf, got -1"),
        ({"kmeans_iters": 0}, "kmeans_iters must be a whole number of at least 1, got 0"),
        (
            {"estimator": "strait_through"},
            "unknown estimator 'strait_through'; known, nearest first: straight_",
        ),
        ({"codebook_dim": 0}, "codebook_dim must be a whole number of at least 1, got 0"),
    ],
)
def test_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VQ(dim=6, codebook_size=16, **options)


@pytest.mark.parametrize("layer", [nn.Sequential(nn.Linear(6, 3), nn.Tanh()).bfloat16(), nn.AvgPool1d(2)])
def test_a_projection_may_be_any_module(layer):
    vq, x = VQ(6, 16, codebook_dim=3), torch.randn(10, 6)
    vq.project_in = layer
    expected = layer(x.bfloat16() if list(layer.parameters()) else x).float()
    assert torch.equal(vq.details(x).latents, expected)
