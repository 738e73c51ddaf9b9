"""The runs of collapse.py and the methods that take part in them, whole and with an ingredient taken away."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driftvq.quantizers import NSVQ, TransVQ, follow
from driftvq.quantizers.follow import COMMITMENT_WEIGHT, commitment_weight

PHOTOS = "photos"


@dataclass(frozen=True)
class Cell:
    """A run: the method, and every setting it depends on.

    Attributes:
        data: a folder with ``train`` and ``val``, or "photos" for the embedded photographs.
        latent_scale: the latents are multiplied by it before the quantizer, the codes divided by it afterwards.
        warm_up: steps as a plain autoencoder, before the quantizer sees its first latent.
    """

    group: str
    method: str
    data: str
    codebook_size: int = 1024
    code_dim: int = 64
    size: int = 32
    steps: int = 2500
    batch_size: int = 16
    learning_rate: float = 5e-4
    latent_scale: float = 1.0
    warm_up: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        """A file name that says everything but the group."""
        return (
            f"{self.method}-{self.data_name}-k{self.codebook_size}-d{self.code_dim}-px{self.size}-s{self.steps}-b{self.batch_size}"
            f"-lr{self.learning_rate:g}-x{self.latent_scale:g}-w{self.warm_up}-seed{self.seed}"
        )

    @property
    def data_name(self) -> str:
        """The name of the data's folder, without those above it."""
        return Path(self.data).resolve().name

    @property
    def latents(self) -> int:
        """Latents per batch."""
        return self.batch_size * (self.size // 4) ** 2


def _nothing(_: Any) -> None:
    pass


@dataclass(frozen=True)
class Method:
    """A contestant: a quantizer, its options (some depend on the run), and what an ablation takes away from it."""

    label: str
    quantizer: str
    options: Callable[[Cell], dict[str, Any]] = lambda _: {}
    change: Callable[[Any], None] = _nothing
    ours: bool = False


def _with(**options: Any) -> Callable[[Cell], dict[str, Any]]:
    return lambda _: options


def _replacing(threshold: Callable[[Cell], float]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {"kmeans_init": True, "threshold_ema_dead_code": threshold(cell)}


def _committed_as_ours(options: Callable[[Cell], dict[str, Any]]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {**options(cell), "commitment_weight": commitment_weight(cell.code_dim)}


def _no_drift(quantizer: NSVQ) -> None:
    quantizer.follower.drifted = lambda codes, drift: codes  # type: ignore[union-attr, method-assign]


def _no_relocation(quantizer: NSVQ) -> None:
    quantizer.follower._relocate_ = lambda codes, *_: codes  # type: ignore[union-attr, method-assign]


def _winners_alone(quantizer: NSVQ) -> None:
    _no_drift(quantizer)
    _no_relocation(quantizer)


def _full_drift(quantizer: NSVQ) -> None:
    follower: Any = quantizer.follower
    remember = follower._remember_

    def remember_and_trust_(kept: Tensor, drift: Any, moments: Any) -> None:
        remember(kept, drift, moments)
        follower.gain.fill_(1)

    follower._remember_ = remember_and_trust_


def _short_memory(_: NSVQ) -> None:
    follow.MEMORY_SHARE = 0.0


def _no_gate(quantizer: TransVQ) -> None:
    pace: Any = quantizer.pace
    forward = pace.forward
    pace.forward = lambda codes, transform, step: forward(codes, transform, torch.full_like(step, math.inf))


def _closed_gate(quantizer: TransVQ) -> None:
    pace: Any = quantizer.pace
    forward = pace.forward
    pace.forward = lambda codes, transform, step: forward(codes, transform, torch.zeros_like(step))


METHODS = {
    "vq": Method("VQ", "vq"),
    "ema": Method("EMA", "ema_vq"),
    "ema_replace": Method("EMA + replacement below 2", "ema_vq", _replacing(lambda _: 2.0)),
    "ema_tuned": Method(
        "EMA + replacement below half of N/K",
        "ema_vq",
        _replacing(lambda cell: 0.5 * cell.latents / cell.codebook_size),
    ),
    "factorized": Method("FactorizedVQ", "factorized_vq"),
    "sim_vq": Method("SimVQ", "sim_vq"),
    "fsq": Method("FSQ", "fsq"),
    "ns_vq": Method("NSVQ", "ns_vq", ours=True),
    "trans_vq": Method("TransVQ, attention", "trans_vq", ours=True),
    "trans_vq_mlp": Method("TransVQ, MLP", "trans_vq", _with(transform="mlp"), ours=True),
    "none": Method("no quantizer: the ceiling", "none"),
    "ns_vq_paper": Method("NS-VQ, as printed", "ns_vq_paper"),
    "trans_vq_paper": Method("TransVQ, as printed", "trans_vq_paper"),
    "ns_vq_random": Method("NSVQ without the k-means start", "ns_vq", _with(kmeans_init=False)),
    "ns_vq_no_drift": Method("NSVQ without the drift", "ns_vq", change=_no_drift),
    "ns_vq_full_drift": Method("NSVQ, all of the fitted drift", "ns_vq", change=_full_drift),
    "ns_vq_no_relocation": Method("NSVQ, lost codes stay lost", "ns_vq", change=_no_relocation),
    "ns_vq_winners_alone": Method("NSVQ, winners alone move", "ns_vq", change=_winners_alone),
    "ns_vq_short_memory": Method("NSVQ, memory does not grow", "ns_vq", change=_short_memory),
    "trans_vq_mlp_random": Method(
        "TransVQ, MLP without the k-means start", "trans_vq", _with(transform="mlp", kmeans_init=False, follow=True)
    ),
    "trans_vq_mlp_no_follower": Method(
        "TransVQ, MLP, φ alone moves the codes", "trans_vq", _with(transform="mlp", follow=False)
    ),
    "trans_vq_mlp_no_gate": Method("TransVQ, MLP, φ unbounded", "trans_vq", _with(transform="mlp"), change=_no_gate),
    "trans_vq_mlp_no_phi": Method(
        "TransVQ, MLP, φ stands still", "trans_vq", _with(transform="mlp"), change=_closed_gate
    ),
    **{
        f"{name}_{estimator}": Method(
            f"{label}, {estimator}", quantizer, _with(estimator=estimator, **options), ours=True
        )
        for name, label, quantizer, options in (
            ("ns_vq", "NSVQ", "ns_vq", {}),
            ("trans_vq_mlp", "TransVQ, MLP", "trans_vq", {"transform": "mlp"}),
        )
        for estimator in ("rotation", "modified", "gumbel")
    },
    **{
        f"residual_{name}": Method(
            f"ResidualVQ, 8 levels of {label}", "residual_vq", _with(num_quantizers=8, **options), ours=True
        )
        for name, label, options in (
            ("ns_vq", "NSVQ", {"quantizer": "ns_vq"}),
            ("trans_vq_mlp", "TransVQ, MLP", {"quantizer": "trans_vq", "transform": "mlp"}),
        )
    },
}
METHODS |= {
    **{
        f"{name}_committed": Method(
            f"{METHODS[name].label}, β = {COMMITMENT_WEIGHT}",
            METHODS[name].quantizer,
            _with(commitment_weight=COMMITMENT_WEIGHT, **options),
            ours=True,
        )
        for name, options in (("ns_vq", {}), ("trans_vq_mlp", {"transform": "mlp"}))
    },
    **{
        f"{name}_uncommitted": Method(
            f"{METHODS[name].label}, β as ours",
            METHODS[name].quantizer,
            _committed_as_ours(METHODS[name].options),
        )
        for name in ("ema_replace", "ema_tuned", "sim_vq")
    },
}
"""Below 64 dimensions our β is not that of the peers: each with the other's."""
