import pytest
import torch
from torch import nn

import driftvq.models.conv as conv
from driftvq.models.conv import Conv3x3


def pair(channels: int, bias: bool) -> tuple[Conv3x3, nn.Conv2d]:
    torch.manual_seed(0)
    ours, plain = Conv3x3(channels, channels, bias=bias), nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that Winograd's algorithm was used for."""
    seen: list[torch.Size] = []
    original = conv.winograd_conv3x3

    def spy(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return original(x, weight)

    monkeypatch.setattr(conv, "winograd_conv3x3", spy)
    return seen


@pytest.mark.parametrize("bias", [True, False])
def test_equals_a_plain_convolution_in_value_and_gradient(bias: bool, calls: list[torch.Size]) -> None:
    ours, plain = pair(96, bias)
    x = torch.randn(2, 96, 10, 7, requires_grad=True)
    mine, theirs = ours(x), plain(x)
    assert len(calls) == 1
    assert (mine - theirs).norm() < 1e-5 * theirs.norm()
    mine_grads = torch.autograd.grad(mine.square().mean(), [x, *ours.parameters()])
    for a, b in zip(mine_grads, torch.autograd.grad(theirs.square().mean(), [x, *plain.parameters()]), strict=True):
        assert (a - b).norm() < 1e-5 * b.norm()


def test_keeps_to_the_plain_one_where_winograd_does_not_pay(calls: list[torch.Size]) -> None:
    few, plain = pair(8, True)
    x = torch.randn(1, 8, 8, 8)
    assert torch.equal(few(x), plain(x))
    many, _ = pair(96, False)
    with torch.autocast("cpu", torch.bfloat16):
        assert many(torch.randn(1, 96, 8, 8)).dtype == torch.bfloat16
    many.double()(torch.randn(1, 96, 8, 8, dtype=torch.float64))
    assert calls == []


def test_exports_as_a_plain_convolution(calls: list[torch.Size]) -> None:
    ours, _ = pair(96, True)
    program = torch.export.export(ours, (torch.randn(1, 96, 8, 8),))
    assert calls == []
    assert any("conv2d" in str(node.target) for node in program.graph.nodes)
