import pytest
import torch

from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.weights import MissingWeightsError
from driftvq.training.config import TrainConfig
from driftvq.training.losses import make_reconstruction_loss


def pair():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(2, 3, 32, 32, generator=generator) * 2 - 1 for _ in range(2)]


def test_mse_is_the_mean_over_everything():
    x, y = pair()
    expected = ((x.double() - y.double()) ** 2).sum() / x.numel()
    assert make_reconstruction_loss(TrainConfig())(x, y).item() == pytest.approx(expected.item())


def test_lpips_is_added_with_its_weight_and_has_a_gradient():
    try:
        lpips = LPIPS("vgg")
    except MissingWeightsError as error:
        pytest.skip(str(error))
    x, y = pair()
    loss = make_reconstruction_loss(TrainConfig(loss="mse+lpips", lpips_weight=0.3))
    expected = (x - y).square().mean() + 0.3 * lpips(x, y).mean()
    x.requires_grad_()
    value = loss(x, y)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    assert x.grad.isfinite().all()
    assert loss.state_dict() == {}, "a checkpoint must not carry the weights of LPIPS"
    assert not any(p.requires_grad for p in loss.parameters())
