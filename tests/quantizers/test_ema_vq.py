import numpy as np
import pytest
import torch

from driftvq import EMAVQ


def test_several_steps_match_the_formula() -> None:
    torch.manual_seed(0)
    vq = EMAVQ(dim=4, codebook_size=8, decay=0.9, eps=1e-3).double()
    torch.nn.init.normal_(vq.book.codes)
    vq.book.cluster_sum.copy_(vq.book.codes)
    codes, size, total = vq.book.codes.numpy().copy(), np.ones(8), vq.book.codes.numpy().copy()
    for seed in range(5):
        z = torch.randn(60, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        zn = z.numpy()
        win = ((zn[:, None] - codes[None]) ** 2).sum(axis=2).argmin(axis=1)
        quantized, indices, loss = vq(z)
        np.testing.assert_array_equal(indices, win)
        np.testing.assert_allclose(quantized, codes[win])
        assert loss.item() == pytest.approx(0.25 * np.mean((zn - codes[win]) ** 2))
        onehot = np.eye(8)[win]
        size = 0.9 * size + 0.1 * onehot.sum(axis=0)
        total = 0.9 * total + 0.1 * onehot.T @ zn
        smoothed = (size + 1e-3) / (size.sum() + 8 * 1e-3) * size.sum()
        codes = total / smoothed[:, None]
        np.testing.assert_allclose(vq.book.codes, codes)


def test_dead_codes_move_to_latents_and_stay_there() -> None:
    torch.manual_seed(0)
    vq = EMAVQ(dim=2, codebook_size=8, decay=0.5, threshold_ema_dead_code=0.9)
    with torch.no_grad():
        vq.book.codes.copy_(torch.arange(8.0)[:, None] * 1000 + torch.zeros(8, 2))
        vq.book.cluster_sum.copy_(vq.book.codes)
    x = torch.randn(64, 2)
    vq(x)
    assert vq.book.cluster_size[1:].tolist() == pytest.approx([0.9] * 7)
    for code in vq.book.codes[1:]:
        assert any(torch.equal(code, row) for row in x)
    assert vq.book.codes[1:].unique(dim=0).shape[0] == 7
    assert torch.allclose(vq.book.cluster_sum[1:], vq.book.codes[1:] * 0.9)
    for _ in range(20):
        indices = vq(x).indices
    assert indices.unique().numel() == 8


@pytest.mark.parametrize("estimator", ["modified", "gumbel"])
def test_refuses_estimators_that_train_the_codebook(estimator: str) -> None:
    with pytest.raises(ValueError, match=f"estimator '{estimator}' trains the codebook"):
        EMAVQ(dim=4, codebook_size=8, estimator=estimator)


@pytest.mark.parametrize("decay", [-0.1, 1.1])
def test_refuses_a_bad_decay(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must lie between 0 and 1"):
        EMAVQ(dim=4, codebook_size=8, decay=decay)


def test_codes_that_forget_everything_stay_where_they_are() -> None:
    vq = EMAVQ(4, 8, decay=0.0)
    vq(torch.randn(64, 4))
    before = vq.codebook.clone()
    vq(torch.zeros(0, 4))
    assert torch.equal(vq.codebook, before)
    vq = EMAVQ(4, 8, decay=0.5, eps=0.0)
    for _ in range(200):
        vq(torch.ones(3, 4))
    assert vq.codebook.isfinite().all()
