from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from driftvq.functional import blocks
from driftvq.quantizers import TransVQ, rowwise
from driftvq.quantizers.transforms import MLPTransform

ROWS = 40


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty rows are many, and make two blocks."""
    make_many(monkeypatch)


def make_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "MANY_ROWS", ROWS)
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 1)


def network(residual: bool = True) -> MLPTransform:
    torch.manual_seed(0)
    made = MLPTransform(3, 8, residual).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def gradients(made: MLPTransform, loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x_kd = torch.randn(ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad(loss(made(x_kd)), [p for p in made.parameters() if p.requires_grad]))


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "some rows": lambda y_kd: y_kd[[3, 3, 17, 39]].square().sum(),
    "all rows": lambda y_kd: y_kd.exp().mean(),
    "one entry": lambda y_kd: y_kd[5, 2],
    "no row": lambda y_kd: (y_kd * 0).sum(),
}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_are_those_of_autograd(
    loss: Callable[[Tensor], Tensor], residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(network(residual), loss)
    make_many(monkeypatch)
    for found, wanted in zip(gradients(network(residual), loss), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("many")
def test_only_rows_with_a_gradient_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = network(), []
    original = made._moved
    monkeypatch.setattr(made, "_moved", lambda x_kd: seen.append(len(x_kd)) or original(x_kd))
    gradients(made, LOSSES["some rows"])
    assert seen == [32, 8, 3]


@pytest.mark.usefixtures("many")
def test_nothing_but_rows_and_parameters_is_kept() -> None:
    made, kept = network(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        made(torch.randn(ROWS, 3, dtype=torch.float64))
    assert kept == [ROWS * 3, *(parameter.numel() for parameter in made.parameters())]


@pytest.mark.usefixtures("many")
def test_a_part_of_the_parameters_may_be_frozen() -> None:
    made = network()
    made.hidden.requires_grad_(False)
    assert [grad.shape for grad in gradients(made, LOSSES["all rows"])] == [(3, 8), (3,)]
    made.requires_grad_(False)
    assert not made(torch.randn(ROWS, 3, dtype=torch.float64)).requires_grad


@pytest.mark.usefixtures("many")
def test_rows_with_a_gradient_of_their_own() -> None:
    x_kd = torch.randn(ROWS, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(network(), x_kd)


@pytest.mark.usefixtures("many")
def test_the_backward_pass_is_as_exact_under_autocast() -> None:
    made = network().float()
    x_kd, loss = torch.randn(ROWS, 3), LOSSES["some rows"]
    expected = torch.autograd.grad(loss(made(x_kd)), list(made.parameters()))
    y_kd = made(x_kd)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss(y_kd), list(made.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("estimator", ["straight_through", "rotation", "modified", "gumbel"])
def test_trans_vq_trains_the_same_with_many_codes(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        quantizer = TransVQ(4, ROWS, transform="mlp", estimator=estimator).double()
        optimizer = torch.optim.Adam(quantizer.parameters(), 1e-2)
        for _ in range(5):
            out = quantizer(torch.randn(2, 60, 4, dtype=torch.float64))
            optimizer.zero_grad()
            (out.loss + out.quantized.square().mean()).backward()
            optimizer.step()
        assert quantizer.pace is not None
        return quantizer.codebook.detach().clone(), quantizer.pace.rest

    expected = train()
    assert expected[1].any()
    make_many(monkeypatch)
    torch.testing.assert_close(train(), expected, rtol=1e-10, atol=1e-10)
