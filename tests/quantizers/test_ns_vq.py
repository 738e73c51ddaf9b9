"""NSVQ itself; what it shares with TransVQ is in test_following.py, its parts are in codebooks/."""

import numpy as np
import pytest
import torch

from driftvq import NSVQ, VQ, Quantizer
from tests.quantizers.codebooks.following import NumpyDrift, affine, winners


def test_a_step_is_the_drift_and_then_the_winners() -> None:
    """The first two parts together, from their equations; codes that are drifted on are drawn to the same latents."""
    generator = torch.Generator().manual_seed(0)
    vq = NSVQ(dim=3, codebook_size=20, parts=["drift", "winners"], kmeans_init=False).double()
    codes = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    vq.set_codebook_(codes)
    drift, memory = NumpyDrift(codes.numpy(), affine), np.full(20, 1.0)
    for step in range(3):  # after each of which the frame is looked at again, with the codes where both left them
        z = torch.randn(30, 3, generator=generator, dtype=torch.float64).numpy() + 0.2 * step
        win, frame = winners(z, drift.codes), drift.frame
        near = drift.codes[win] + frame.spread * frame.away(z, drift.codes[win])
        drift.step_(z)
        memory = memory * np.exp(-len(z) / 60) + np.bincount(win, minlength=20)
        for k in np.unique(win):
            drift.codes[k] += (win == k).sum() / memory[k] * (near[win == k].mean(axis=0) - drift.codes[k])
        drift.rescale_(frame.look_(drift.codes))
        vq(torch.from_numpy(z))
        np.testing.assert_allclose(vq.codebook, drift.codes, rtol=1e-6, atol=1e-8)
    assert np.abs(drift.field).max() > 0


def test_has_nothing_to_train_unless_the_estimator_trains_codes() -> None:
    assert not list(NSVQ(dim=3, codebook_size=10).parameters())
    vq = NSVQ(dim=3, codebook_size=10, estimator="modified")
    assert [name for name, _ in vq.named_parameters()] == ["book.codes"]


def test_the_loss_is_the_commitment_alone() -> None:
    torch.manual_seed(0)
    vq = NSVQ(dim=3, codebook_size=10, kmeans_init=False, commitment_weight=0.4)
    vq.set_codebook_(torch.randn(10, 3))
    z, codes = torch.randn(50, 3), vq.codebook.numpy().copy()
    error = np.square(z.numpy()[:, None] - codes).sum(axis=2).min(axis=1).mean() / 3
    assert vq(z).loss.item() == pytest.approx(0.4 * error, rel=1e-5)


def usage_after_drift(vq: Quantizer, steps: int = 60) -> float:
    """Usage after the latents moved ten times their spread."""
    trained = [parameter for parameter in vq.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0) if trained else None
    for step in range(steps):
        z = torch.randn(64, 2, generator=torch.Generator().manual_seed(step)) + 10 * step / steps
        loss = vq(z.requires_grad_()).loss
        loss.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    cloud = torch.randn(4000, 2, generator=torch.Generator().manual_seed(999)) + 10
    return vq.eval()(cloud).indices.unique().numel() / vq.codebook_size


def test_keeps_every_code_alive_under_drift_where_vanilla_loses_them() -> None:
    assert usage_after_drift(NSVQ(dim=2, codebook_size=16)) == 1.0
    assert usage_after_drift(VQ(dim=2, codebook_size=16, kmeans_init=True)) < 0.5
