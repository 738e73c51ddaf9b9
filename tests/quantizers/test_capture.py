"""A training step as one graph that is captured once and then replayed: no host read, no shape that depends on data.

A graph is traced from tensors that have no values, so whatever asks for one fails. Replayed over more steps than the
codebook's clock has phases, it has to do what the module itself does.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from driftvq import make_quantizer
from driftvq.quantizers.codebooks.clock import LOOK_INTERVAL

DIM, CODES = 4, 16
CASES: dict[str, dict[str, Any]] = {
    "ns_vq": {},
    "trans_vq": {"transform": "mlp", "width": 8},
    "ema_vq": {"threshold_ema_dead_code": 1.0},
    "residual_vq": {"num_quantizers": 2},
}
LATENTS = (8, 40, 80)
"""Fewer than codes, and so many that lost codes are relocated and the drift is judged every fourth step."""


def quantizer(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    vq = make_quantizer(name, dim=DIM, codebook_size=CODES, **CASES[name]).train().to(dtype)
    vq(torch.randn(4, CODES, DIM, dtype=dtype))  # the k-means start
    for step in range(3):  # Python's clock goes ahead of the device's
        vq(drifting(step, CODES).to(dtype))
    return vq


def drifting(step: int, latents: int) -> Tensor:
    noise = torch.randn(1, latents, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return noise * (1 + 0.05 * step) + 0.3 * step


def train(vq: nn.Module, state: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """Output, indices, loss, and the gradients of latents and parameters; the buffers in ``state`` move on."""
    x = x.detach().requires_grad_()
    quantized, indices, loss = functional_call(vq, state, (x,))
    wanted = [x, *(value for value in state.values() if value.requires_grad)]
    gradients = torch.autograd.grad(quantized.square().sum() + loss, wanted, materialize_grads=True)
    return [quantized.detach(), indices, loss.detach(), *gradients]


def state_of(vq: nn.Module) -> dict[str, Tensor]:
    for module in vq.modules():
        if hasattr(module, "pack_"):
            module.pack_()
    trained = {name: value.detach().clone().requires_grad_() for name, value in vq.named_parameters()}
    return {**trained, **{name: value.clone() for name, value in vq.named_buffers()}}


def captured(vq: nn.Module, state: dict[str, Tensor], latents: int) -> GraphModule:
    graph: GraphModule = make_fx(lambda given, x: train(vq, given, x), tracing_mode="fake")(state, drifting(0, latents))
    return graph


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-6, atol: float = 1e-9) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("latents", LATENTS)
@pytest.mark.parametrize("name", CASES)
def test_a_step_captured_once_replays_as_every_step_of_the_clock(name: str, latents: int) -> None:
    eager = quantizer(name)
    replayed = state_of(eager)
    graph = captured(quantizer(name), replayed, latents)
    for step in range(LOOK_INTERVAL + 4):
        x = drifting(step, latents)
        expected = train(eager, dict(eager.named_parameters()), x)
        with torch.no_grad():  # its gradients are in it
            results = graph(replayed, x)
        for found, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    compare(replayed, state_of(eager))


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_a_compiler_computes_again_sees_the_codes_before_they_moved(name: str) -> None:
    _check_compiled(name, backend="aot_eager_decomp_partition")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_compiles_for_cuda_graphs_into_one_graph(name: str) -> None:
    """On the CPU Inductor compiles the same graph and does not record it."""
    _check_compiled(name, mode="reduce-overhead")


def _check_compiled(name: str, **options: Any) -> None:
    # Not float64: torch 2.13 loses what a compiled graph writes into its scalars.
    eager, vq = (quantizer(name, torch.float32) for _ in range(2))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(vq, fullgraph=True, **options)
    for step in range(LOOK_INTERVAL + 4):
        latents = [drifting(step, LATENTS[1]).float().requires_grad_() for _ in range(2)]
        for module, x in zip((compiled, eager), latents, strict=True):
            quantized, _, loss = module(x)
            (quantized.square().sum() + loss).backward()
        torch.testing.assert_close(latents[0].grad, latents[1].grad, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # the first takes over the time from Python
    compare(state_of(vq), state_of(eager), rtol=1e-3, atol=1e-4)
    for (parameter, a), b in zip(vq.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=parameter)
