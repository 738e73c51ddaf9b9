from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from driftvq.metrics.lpips import LPIPS
from driftvq.metrics.weights import MissingWeightsError
from driftvq.training.config import TrainConfig
from driftvq.training.objective import (
    Adversary,
    PatchDiscriminator,
    ReconstructionLoss,
    adaptive_weight,
    hinge_loss,
)


def pair():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(2, 3, 32, 32, generator=generator) * 2 - 1 for _ in range(2)]


def test_mse_is_the_mean_over_everything():
    x, y = pair()
    expected = ((x.double() - y.double()) ** 2).sum() / x.numel()
    assert ReconstructionLoss(TrainConfig())(x, y).item() == pytest.approx(expected.item())


def test_lpips_is_added_with_its_weight_and_has_a_gradient():
    try:
        lpips = LPIPS("vgg")
    except MissingWeightsError as error:
        pytest.skip(str(error))
    x, y = pair()
    loss = ReconstructionLoss(TrainConfig(loss="mse+lpips", lpips_weight=0.3))
    expected = (x - y).square().mean() + 0.3 * lpips(x, y).mean()
    x.requires_grad_()
    value = loss(x, y)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    assert x.grad.isfinite().all()
    assert loss.state_dict() == {}, "a checkpoint must not carry the weights of LPIPS"
    assert not any(p.requires_grad for p in loss.parameters())


def pictures(seed, blurred):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(8, 3, 32, 32, generator=generator) * 2 - 1
    return nn.functional.avg_pool2d(images, 5, 1, 2) if blurred else images


def test_hinge_loss_against_numpy():
    real, fake = np.array([-2.0, 0.5, 3.0]), np.array([-3.0, 0.2])
    expected = 0.5 * (np.maximum(0, 1 - real).mean() + np.maximum(0, 1 + fake).mean())
    assert hinge_loss(torch.tensor(real), torch.tensor(fake)).item() == pytest.approx(expected)


def test_the_discriminator_learns_to_tell():
    torch.manual_seed(0)
    adversary = Adversary(1.0, 0, 1e-3, (0.5, 0.9))
    for step in range(12):
        adversary.learn_(pictures(step, False), pictures(step + 1000, True))
    with torch.no_grad():
        real = adversary.discriminator(pictures(77, False)).mean((1, 2, 3))
        fake = adversary.discriminator(pictures(78, True)).mean((1, 2, 3))
    assert real.min() > fake.max()


def test_scores_are_of_patches_and_of_each_image_alone():
    torch.manual_seed(0)
    net, images = PatchDiscriminator(), pictures(0, False)
    scores = net(images)
    assert scores.shape[1] == 1
    assert min(scores.shape[2:]) > 1
    torch.testing.assert_close(scores[:2], net(images[:2]))


def test_the_adaptive_weight_balances_the_two_pulls():
    layer = torch.tensor([1.0, 2.0], requires_grad=True)
    weight = adaptive_weight((layer * torch.tensor([3.0, 4.0])).sum(), (layer * torch.tensor([0.0, 0.5])).sum(), layer)
    assert weight.item() == pytest.approx(5 / (0.5 + 1e-4))
    assert adaptive_weight(layer.sum(), (0 * layer).sum(), layer).item() == pytest.approx(1e4)


def test_the_generators_gradient_is_finite_and_the_discriminator_does_not_move_by_it():
    torch.manual_seed(0)
    adversary = Adversary(0.5, 0, 1e-3, (0.5, 0.9))
    before = [p.detach().clone() for p in adversary.discriminator.parameters()]
    decoder = nn.Conv2d(3, 3, 3, padding=1)
    images = pictures(0, False)
    rebuilt = decoder(images)
    loss = nn.functional.mse_loss(rebuilt, images)
    (loss + adversary.generator_loss(rebuilt, loss, decoder.weight)).backward()
    assert decoder.weight.grad.isfinite().all()
    assert decoder.weight.grad.abs().sum() > 0
    adversary.learn_(images, rebuilt)
    moved = [not torch.equal(a, b) for a, b in zip(before, adversary.discriminator.parameters(), strict=True)]
    assert all(moved)


def test_what_the_generator_left_behind_does_not_count_for_the_discriminator():
    def step(generator_first):
        torch.manual_seed(0)
        adversary = Adversary(0.5, 0, 1e-3, (0.5, 0.9))
        images, rebuilt = pictures(0, False), pictures(1, True).requires_grad_()
        if generator_first:
            adversary.discriminator(rebuilt).sum().backward()
        adversary.learn_(images, rebuilt)
        return [p.detach() for p in adversary.discriminator.parameters()]

    for alone, after in zip(step(False), step(True), strict=True):
        assert torch.equal(alone, after)


def test_parts_make_one_step_of_the_whole():
    def step(parts):
        torch.manual_seed(0)
        adversary = Adversary(0.5, 0, 1e-3, (0.5, 0.9))
        loss = adversary.learn_(pictures(0, False), pictures(1, True), parts)
        return [loss, *(p.grad for p in adversary.discriminator.parameters())]

    torch.testing.assert_close(step(3), step(1))


def test_starts_at_its_step_and_continues_from_its_state():
    torch.manual_seed(0)
    first = Adversary(0.5, 10, 1e-3, (0.5, 0.9))
    assert [first.active(step) for step in (1, 9, 10, 11)] == [False, False, True, True]
    first.learn_(pictures(0, False), pictures(1, True))
    second = Adversary(0.5, 10, 1e-3, (0.5, 0.9))
    second.load_state_dict(deepcopy(first.state_dict()))
    losses = [a.learn_(pictures(2, False), pictures(3, True)).item() for a in (first, second)]
    assert losses[0] == losses[1]
    for a, b in zip(first.discriminator.parameters(), second.discriminator.parameters(), strict=True):
        assert torch.equal(a, b)
