"""What a training step costs, counted from the shapes of a network: ``python benchmarks/step_cost.py``."""

import argparse
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from driftvq.models import NETWORKS
from driftvq.names import check_name

BYTES = {"32-true": 4, "bf16-mixed": 2}
"""Bytes of an activation."""
WEIGHT_BYTES = 16
"""Of a parameter: weight, gradient and Adam's two averages, in float32."""


@dataclass(frozen=True)
class StepCost:
    """What one process computes and keeps for one step.

    Attributes:
        network_flops: of encoder and decoder, forward and backward; a multiplication and an addition are two.
        search_flops: of the search for the nearest codes, ``2 · latents · K · D``.
        latents: per step.
        parameters: of encoder and decoder.
        saved_values: numbers that the forward pass keeps for the backward pass.
    """

    network_flops: int
    search_flops: int
    latents: int
    parameters: int
    saved_values: int

    def memory(self, precision: str) -> int:
        """Bytes of weights, gradients, optimizer and kept activations."""
        return WEIGHT_BYTES * self.parameters + BYTES[precision] * self.saved_values

    def seconds(self, flops_per_second: float) -> float:
        """Time of a step on a machine that sustains so many operations a second."""
        return (self.network_flops + self.search_flops) / flops_per_second


def step_cost(network: str, size: int, batch_size: int, codebook_size: int, code_dim: int) -> StepCost:
    """Count on tensors without memory, so that any size can be asked for."""
    check_name("network", network, NETWORKS)
    with torch.device("meta"):
        encoder, decoder, downscale = NETWORKS[network](code_dim)
        images = torch.empty(batch_size, 3, size, size)
    counter, saved = FlopCounterMode(display=False), SavedValues(encoder, decoder)
    with counter, saved:
        latents: Tensor = encoder(images)
        decoder(latents).sum().backward()
    positions = batch_size * (size // downscale) ** 2
    return StepCost(
        network_flops=counter.get_total_flops(),
        search_flops=2 * positions * codebook_size * code_dim,
        latents=positions,
        parameters=sum(p.numel() for part in (encoder, decoder) for p in part.parameters()),
        saved_values=saved.values,
    )


class SavedValues(torch.autograd.graph.saved_tensors_hooks):
    """Counts what autograd keeps, each tensor once and parameters not at all."""

    def __init__(self, *modules: nn.Module) -> None:
        self.values = 0
        self._seen = {_storage(parameter) for module in modules for parameter in module.parameters()}
        self._alive: list[Tensor] = []
        super().__init__(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._seen:
            self._seen.add(_storage(tensor))
            self._alive.append(tensor)  # or its storage's address would be given away again
            self.values += tensor.numel()
        return tensor


def _storage(tensor: Tensor) -> int:
    """What views of one tensor share."""
    return int(tensor.untyped_storage()._cdata)


def format_cost(cost: StepCost, teraflops: float) -> str:
    """A few lines for people."""
    weights = _gb(WEIGHT_BYTES * cost.parameters)
    lines = [
        f"parameters      {cost.parameters / 1e6:9.2f} M   × {WEIGHT_BYTES} bytes = {weights}",
        f"latents         {cost.latents:9,d}",
        f"network         {cost.network_flops / 1e12:9.3f} TFLOP, forward and backward",
        f"search          {cost.search_flops / 1e12:9.3f} TFLOP",
        f"kept activations{cost.saved_values / 1e6:9.0f} M",
        *(f"memory {name:9s}{_gb(cost.memory(name)):>9s}" for name in BYTES),
        f"time            {1000 * cost.seconds(teraflops * 1e12):9.1f} ms at {teraflops:g} sustained TFLOP/s",
    ]
    return "\n".join(lines)


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def main(argv: list[str] | None = None) -> None:
    """Print the cost of a step."""
    parser = argparse.ArgumentParser(prog="python benchmarks/step_cost.py", description=__doc__)
    parser.add_argument("--network", default="paper")
    for name, default in (("size", 256), ("batch-size", 16), ("codebook-size", 1024), ("code-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--teraflops", type=float, default=100.0, help="that the machine sustains (default: 100)")
    args = parser.parse_args(argv)
    cost = step_cost(args.network, args.size, args.batch_size, args.codebook_size, args.code_dim)
    sys.stdout.write(format_cost(cost, args.teraflops) + "\n")


if __name__ == "__main__":
    main()
