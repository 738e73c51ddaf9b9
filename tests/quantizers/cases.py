"""Every registered quantizer, and the options worth a run through the whole contract."""

from dataclasses import dataclass, field
from typing import Any

import torch

from driftvq import QUANTIZERS, Quantizer, make_quantizer

DIM, SIZE = 12, 64

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "vq": [
        {"codebook_dim": 4},
        {"kmeans_init": True},
        {"restart_after": 2},
        {"orthogonal_weight": 0.1},
        {"estimator": "rotation"},
        {"estimator": "modified"},
        {"estimator": "gumbel"},
        {"estimator": "directional"},
        {"estimator": "space_filling"},
        {"estimator": "sampled"},
    ],
    "wasserstein_vq": [{"codebook_dim": 4}],
    "bridge_vq": [{"codes_per_token": 5, "depth": 1, "width": 16}, {"codebook_dim": 4, "width": 16}],
    "ibq": [{"codebook_dim": 4}],
    "cvq": [{"anchors": "closest", "kmeans_init": True}, {"anchors": "random"}],
    "opt_vq": [{"iterations": 5, "kmeans_init": True}],
    "bsq": [{"dim": 6}],
    "ns_vq_sequel": [{"replace_after": 2}],
    "ema_vq": [{"threshold_ema_dead_code": 2.0, "kmeans_init": True}, {"codebook_dim": 4, "estimator": "rotation"}],
    "factorized_vq": [{"codebook_dim": DIM}, {"kmeans_init": True}, {"estimator": "rotation"}],
    "sim_vq": [{"estimator": "rotation"}, {"codebook_dim": 4}],
    "ns_vq": [
        {"estimator": "rotation"},
        {"estimator": "modified"},
        {"estimator": "gumbel"},
        {"codebook_dim": 4},
        {"parts": ("winners", "relocation")},
        {"parts": ("drift", "winners")},
        {"parts": ("drift", "relocation")},
    ],
    "ns_vq_paper": [{"estimator": "rotation"}, {"decay_every": 2}],
    "ns_vq_delta_e": [{"codebook_dim": 4}],
    "trans_vq_paper": [{"transform": "mlp"}, {"transform": "mlp", "residual": True}],
    "trans_vq": [
        {"transform": "mlp"},
        {"estimator": "rotation"},
        {"estimator": "modified"},
        {"estimator": "gumbel"},
        {"codebook_dim": 4},
    ],
    "fsq": [{"dim": 2}],
    "lfq": [{"dim": 6}],
    "residual_vq": [
        {"shared_codebook": True},
        {"quantizer_dropout": True},
        {"quantizer": "trans_vq", "codebook_dim": 6, "num_quantizers": 2},
        {"quantizer": "ema_vq"},
        {"quantizer": "vq", "codebook_size": (64, 16), "codebook_dim": (4, 6), "beam_size": 2},
        {"quantizer": "fsq", "codebook_dim": 2, "num_quantizers": 2},
        {"quantizer": "grouped_vq", "num_quantizers": 2},
    ],
    "multi_scale_vq": [{"quantizer": "vq", "shared_codebook": False}],
    "grouped_vq": [{"shared_codebook": True}, {"groups": 3, "quantizer": "factorized_vq"}, {"codebook_dim": 6}],
}


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        return int(self.options.get("dim", DIM))

    def make(self, **more: Any) -> Quantizer:
        torch.manual_seed(0)
        arguments = {"dim": DIM, "codebook_size": SIZE, **self.options, **more}
        return make_quantizer(self.name, **arguments)

    def latents(self, batch: int = 4, positions: int = 32, seed: int = 1) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, positions, self.dim, generator=generator)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return "-".join(part for part in (self.name, options) if part)


DEFAULTS = [Case(name) for name in QUANTIZERS]
CASES = [
    *DEFAULTS,
    *(Case(name, options) for name, variants in VARIANTS.items() for options in variants),
]


def train(vq: Quantizer, case: Case, steps: int = 4, lr: float = 0.1, seed: int = 10) -> None:
    """A few training steps with a decoder that wants something else than the latents."""
    vq.train()
    parameters = [parameter for parameter in vq.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr) if parameters else None
    for step in range(steps):
        x = case.latents(seed=seed + step).requires_grad_()
        quantized, _, loss = vq(x)
        ((quantized - 1).square().mean() + loss).backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
