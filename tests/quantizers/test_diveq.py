import numpy as np
import pytest
import torch

from driftvq import DiVeQ


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_training_is_near_a_code_at_every_scale_and_evaluation_at_one(scale: float) -> None:
    torch.manual_seed(0)
    vq = DiVeQ(dim=4, codebook_size=32, kmeans_init=False)
    vq.set_codebook_(scale * torch.randn(32, 4))
    z = scale * torch.randn(500, 4)
    quantized, indices, loss = vq(z)
    codes = vq.codebook[indices]
    off = (quantized - codes).square().sum() / (z - codes).square().sum()
    # Of the noise, the three dimensions of four across the step turn it.
    assert 0.8 < off.item() / (1e-3 * 3 / 4) < 1.2
    assert loss.item() == 0
    quantized, indices, _ = vq.eval()(z)
    assert torch.equal(quantized, vq.indices_to_codes(indices))


def test_codes_are_trained_by_the_decoder_alone() -> None:
    torch.manual_seed(0)
    vq = DiVeQ(dim=2, codebook_size=4, kmeans_init=False)
    vq.set_codebook_(torch.randn(4, 2))
    quantized, indices, _ = vq(torch.randn(100, 2))
    (quantized - 3).square().mean().backward()
    used = np.bincount(indices, minlength=4) > 0
    np.testing.assert_array_equal(vq.book.codes.grad.abs().sum(dim=1).numpy() > 0, used)


def test_distances_of_any_two_scales_give_finite_noise() -> None:
    vq = DiVeQ(dim=2, codebook_size=2, kmeans_init=False)
    vq.set_codebook_(torch.tensor([[0.0, 0.0], [1e18, 0.0]]))
    z = torch.tensor([[1e-18, 1e-18], [1e18, 1e17], [1.1e18, 2e17]])
    quantized, indices, _ = vq(z)
    assert indices.tolist() == [0, 1, 1]
    assert quantized.isfinite().all()
    assert not torch.equal(quantized, vq.codebook[indices])
