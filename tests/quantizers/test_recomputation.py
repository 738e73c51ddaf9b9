"""Activation checkpointing changes nothing: gradients, codes and statistics are bit for bit those without it."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from driftvq import NSVQ, QuantizerOutput, ResidualVQ
from driftvq.quantizers.recomputation import MOST_CALLS
from tests.quantizers.cases import CASES, Case

STEPS = 4
Call = Callable[[nn.Module, Tensor], QuantizerOutput]
MODES: dict[str, Call] = {
    "reentrant": lambda module, x: QuantizerOutput(*checkpoint(module, x, use_reentrant=True)),
    "not reentrant": lambda module, x: checkpoint(module, x, use_reentrant=False),
    "to the end": lambda module, x: checkpoint(module, x, use_reentrant=False, early_stop=False),
}


def without(module: nn.Module, x: Tensor) -> QuantizerOutput:
    return module(x)


def train(module: nn.Module, call: Call, case: Case, steps: int = STEPS) -> list[Tensor]:
    """The gradients of the encoder and of the parameters, step by step."""
    torch.manual_seed(5)
    module.train()
    gradients = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        x = case.latents(seed=20 + step).requires_grad_()
        quantized, _, loss = call(module, x)
        ((quantized - 1).square().mean() + loss).backward()
        gradients += [x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return gradients


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


MANY = [
    Case("multi_scale_vq", {"scales": tuple(range(1, 10))}),
    Case("residual_vq", {"quantizer": "residual_vq", "num_quantizers": 5, "shared_codebook": True}),
    Case("residual_vq", {"num_quantizers": 3, "beam_size": 4, "commitment_weight": 1.0}),
    Case("residual_vq", {"beam_size": 3, "commitment_weight": 1.0, "quantizer_dropout": True, "kmeans_init": True}),
]
"""Levels that share a codebook, more than may wait of one quantizer; codes that a beam search chose."""


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("case", [*CASES, *MANY], ids=str)
def test_gradients_and_state_are_those_without_checkpointing(case: Case, mode: str) -> None:
    module = nn.Sequential(nn.Linear(case.dim, case.dim), case.make())
    twin = copy.deepcopy(module)
    expected, found = train(module, without, case), train(twin, MODES[mode], case)
    assert len(found) == len(expected) > STEPS
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert_same(module, twin)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backward", ["together", "in turn", "reversed"])
def test_several_calls_may_wait_for_their_gradients(mode: str, backward: str) -> None:
    case = Case("ns_vq", {"estimator": "modified"})
    module, gradients = case.make(), []
    twin = copy.deepcopy(module)
    for vq, call in ((module, MODES[mode]), (twin, without)):
        inputs = [case.latents(seed=seed).requires_grad_() for seed in range(4)]
        losses = [((out := call(vq, x)).quantized - 1).square().mean() + out.loss for x in inputs]
        losses = {"together": [sum(losses)], "in turn": losses, "reversed": losses[::-1]}[backward]
        for loss in losses:
            loss.backward()
        gradients.append([x.grad for x in inputs] + [p.grad for p in vq.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients[0][:4], gradients[1][:4], strict=True))
    assert_same(module, twin)


def test_too_many_calls_that_wait_are_refused() -> None:
    case = Case("ns_vq")
    vq = case.make()
    calls = [MODES["not reentrant"](vq, case.latents(seed=s).requires_grad_()) for s in range(MOST_CALLS + 1)]
    calls[-1].loss.backward()
    with pytest.raises(
        RuntimeError, match=r"none of the 4 training calls .* saw these latents; at most 4 of a quantizer"
    ):
        calls[0].loss.backward()


def test_a_call_without_checkpointing_in_between_is_refused_and_frees_what_was_kept() -> None:
    case = Case("ns_vq")
    vq = case.make()
    waiting = MODES["reentrant"](vq, case.latents(seed=1).requires_grad_())
    vq(case.latents(seed=2))
    assert vq._past.calls == []
    with pytest.raises(RuntimeError, match="none while it is also called without checkpointing"):
        waiting.loss.backward()


def test_calls_whose_gradient_nobody_wanted_are_dropped() -> None:
    case = Case("ns_vq")
    vq = case.make()
    with torch.no_grad():
        for seed in range(3):
            vq(case.latents(seed=seed))
    for seed in range(3):
        MODES["not reentrant"](vq, case.latents(seed=seed).requires_grad_()).loss.backward()
    assert len(vq._past.calls) == 1


def test_nothing_is_kept_without_checkpointing() -> None:
    for vq in (NSVQ(3, 8), ResidualVQ(3, 8)):
        vq(torch.randn(20, 3))
        vq.eval()
        with torch.no_grad():
            vq(torch.randn(20, 3))
        assert not any(getattr(module, "_past", None) and module._past.calls for module in vq.modules())


def test_a_copy_has_a_past_of_its_own() -> None:
    vq = NSVQ(3, 8)
    MODES["reentrant"](vq, torch.randn(20, 3, requires_grad=True))
    assert len(vq._past.calls) == 1
    assert copy.deepcopy(vq)._past.calls == []


class Checkpointed(nn.Module):
    def __init__(self, vq: nn.Module) -> None:
        super().__init__()
        self.vq = vq

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return checkpoint(lambda z: tuple(self.vq(z)), x, use_reentrant=False)


def test_a_compiled_model_that_checkpoints_is_exact() -> None:
    case = Case("ns_vq")
    vq, twin = case.make(), case.make()
    torch._dynamo.reset()
    compiled = torch.compile(Checkpointed(vq), backend="aot_eager")
    for seed in range(3):
        x, y = (case.latents(seed=seed).requires_grad_() for _ in range(2))
        for quantized, _, loss in (compiled(x), twin(y)):
            ((quantized - 1).square().mean() + loss).backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert vq.step == twin.step
        torch.testing.assert_close(vq.codebook, twin.codebook)


def test_a_compiled_quantizer_in_a_checkpoint_is_refused() -> None:
    case = Case("ns_vq")
    torch._dynamo.reset()
    model = Checkpointed(torch.compile(case.make(), backend="aot_eager"))
    quantized, _, loss = model(case.latents().requires_grad_())
    with pytest.raises(RuntimeError, match="compile the model that checkpoints"):
        (quantized.mean() + loss).backward()
