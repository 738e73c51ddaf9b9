"""The runs of collapse.py and the methods that take part in them, whole and with an ingredient taken away."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftvq.quantizers.codebooks.following import COMMITMENT_WEIGHT, PARTS, default_commitment

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


@dataclass(frozen=True)
class Method:
    """A contestant: a quantizer, and its options, of which some depend on the run."""

    label: str
    quantizer: str
    options: Callable[[Cell], dict[str, Any]] = lambda _: {}
    ours: bool = False


def _with(**options: Any) -> Callable[[Cell], dict[str, Any]]:
    return lambda _: options


def _replacing(threshold: Callable[[Cell], float]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {"kmeans_init": True, "threshold_ema_dead_code": threshold(cell)}


def _committed_as_ours(options: Callable[[Cell], dict[str, Any]]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {**options(cell), "commitment_weight": default_commitment(cell.code_dim)}


def _without(*left_out: str, **options: Any) -> Callable[[Cell], dict[str, Any]]:
    return _with(parts=[name for name in PARTS if name not in left_out], **options)


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
    "ns_vq_no_drift": Method("NSVQ without the drift", "ns_vq", _without("drift")),
    "ns_vq_no_relocation": Method("NSVQ, lost codes stay lost", "ns_vq", _without("relocation")),
    "ns_vq_winners_alone": Method("NSVQ, winners alone move", "ns_vq", _without("drift", "relocation")),
    "ns_vq_no_winners": Method("NSVQ, winners stay", "ns_vq", _without("winners")),
    "trans_vq_mlp_random": Method(
        "TransVQ, MLP without the k-means start", "trans_vq", _with(transform="mlp", kmeans_init=False)
    ),
    "trans_vq_mlp_no_relocation": Method(
        "TransVQ, MLP, lost codes stay lost", "trans_vq", _without("relocation", transform="mlp")
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
