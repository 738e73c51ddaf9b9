import numpy as np
import pytest
import torch
from torch import nn

from driftvq.quantizers.pace import STEP_SHARE, Pace, scale_free, standardized
from driftvq.quantizers.transforms import MLPTransform


def make(seed: int = 0) -> tuple[torch.Tensor, MLPTransform, Pace]:
    torch.manual_seed(seed)
    codebook = 3 * torch.randn(20, 4, dtype=torch.float64) + 5
    transform = MLPTransform(4, 16).double()
    pace = Pace(20, 4).double()
    pace.settle_(codebook, transform)
    return codebook, transform, pace


def disturb(transform: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in transform.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def test_standardized_codes_have_mean_zero_and_root_mean_square_one() -> None:
    codebook, _, _ = make()
    standard, scale = standardized(codebook)
    expected = codebook.numpy() - codebook.numpy().mean(axis=0)
    np.testing.assert_allclose(scale, np.sqrt((expected**2).mean()))
    np.testing.assert_allclose(standard, expected / np.sqrt((expected**2).mean()))


def test_equal_codes_have_no_spread_to_divide_by() -> None:
    standard, scale = standardized(torch.full((5, 3), 7.0))
    assert scale == 1
    assert torch.equal(standard, torch.zeros(5, 3))


def test_nothing_moves_before_the_transform_changes() -> None:
    codebook, transform, pace = make()
    assert torch.equal(pace(codebook, transform, torch.tensor(1.0)), codebook)


@pytest.mark.parametrize(("latents_step", "gated"), [(1e9, False), (1e-3, True)])
def test_codes_take_over_the_change_of_the_transform_up_to_a_share_of_the_step_of_the_latents(
    latents_step: float, gated: bool
) -> None:
    codebook, transform, pace = make()
    centred = codebook - codebook.mean(dim=0)
    scale = centred.square().mean().sqrt()
    before = transform(centred / scale).detach()
    disturb(transform, 0.1)
    asked = scale * (transform(centred / scale).detach() - before)
    after = pace(codebook, transform, torch.tensor(latents_step, dtype=torch.float64)).detach()
    size = asked.square().sum(dim=1).mean().sqrt()
    torch.testing.assert_close(after - codebook, asked * (STEP_SHARE * latents_step / size if gated else 1))


def test_gradient_is_that_of_the_codes_plus_the_scaled_transform() -> None:
    codebook, transform, pace = make()
    disturb(transform, 0.1)
    target = torch.randn_like(codebook)
    (pace(codebook, transform, torch.tensor(1e-3)) * target).sum().backward()
    found = [parameter.grad.clone() for parameter in transform.parameters()]
    transform.zero_grad()
    standard, scale = standardized(codebook)
    ((codebook + scale * transform(standard)) * target).sum().backward()
    for a, parameter in zip(found, transform.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad)


def test_a_scale_free_loss_keeps_its_value_and_divides_its_gradient() -> None:
    codebook, _, _ = make()
    codes = codebook.clone().requires_grad_()
    loss = (codes - 1).square().mean()
    free = scale_free(loss, codebook)
    (found,) = torch.autograd.grad(free, codes, retain_graph=True)
    (plain,) = torch.autograd.grad(loss, codes)
    assert free == loss
    torch.testing.assert_close(found, plain / (loss.detach() + standardized(codebook)[1] ** 2))
