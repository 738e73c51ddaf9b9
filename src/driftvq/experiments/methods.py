"""The methods that can be compared: the paper's and its baselines' own forms, our defaults, and variants of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftvq.names import check_name
from driftvq.quantizers.codebooks.following import COMMITMENT_WEIGHT, default_commitment
from driftvq.records.comparisons import Group
from driftvq.training.config import TrainConfig

LATENT_STRIDE = 4
"""Pixels a side of a latent in the networks that comparisons train."""


@dataclass(frozen=True)
class Method:
    """A contestant.

    Attributes:
        name: unique.
        label: for readers.
        group: whose it is.
        settings: what it changes in a :class:`driftvq.training.TrainConfig`; an option of the quantizer may be a
            function of the config and of the number of training images.
        afterwards: it has no training of its own, but gives a codebook to the network of this method.
    """

    name: str
    label: str
    group: Group
    settings: Mapping[str, Any] = field(default_factory=dict)
    afterwards: str | None = None

    @property
    def has_codebook(self) -> bool:
        """Whether there are codes: a plain autoencoder has none."""
        return self.afterwards is not None or self.settings["quantizer"] != "none"


def epoch(config: TrainConfig, images: int) -> int:
    """The steps of a pass over the data."""
    return max(1, round(images / (config.batch_size * config.accumulate)))


def half_a_share(config: TrainConfig, images: int) -> float:
    """Half of N/K: what a code gets of a batch's N latents if all K get the same."""
    latents = config.batch_size * (config.size // LATENT_STRIDE) ** 2
    return 0.5 * latents / config.codebook_size


def our_commitment(config: TrainConfig, images: int) -> float:
    """The β of our defaults."""
    return default_commitment(config.code_dim)


def resolved(config: TrainConfig, images: int) -> TrainConfig:
    """The config with those options worked out that depend on it."""
    options = {
        name: value(config, images) if callable(value) else value for name, value in config.quantizer_options.items()
    }
    return replace(config, quantizer_options=options)


def _quantizer(name: str, **options: Any) -> dict[str, Any]:
    return {"quantizer": name, "quantizer_options": options}


def _ema(replaced_below: float | Callable[[TrainConfig, int], float], **options: Any) -> dict[str, Any]:
    """EMA with a k-means start, and codes replaced that fewer latents per batch than this select on average."""
    return _quantizer("ema_vq", kmeans_init=True, threshold_ema_dead_code=replaced_below, **options)


_MLP = {"transform": "mlp"}
_BETA = f"β = {COMMITMENT_WEIGHT}"

MAIN = {
    method.name: method
    for method in (
        Method("vq", "VQ-VAE", "peer", _quantizer("vq")),
        Method("vqvae2", "VQVAE2 (EMA)", "peer", _quantizer("ema_vq")),
        # Far below one: with more codes than latents in a batch, one would replace every code at every step.
        Method("vqgan_ema", "VQGAN-EMA", "peer", _ema(0.05)),
        Method("vqgan_ema_authors", "VQGAN-EMA, the authors' settings", "peer", _ema(1.0, decay=0.9995)),
        Method("ema_replace", "EMA + replacement below 2", "peer", _ema(2.0)),
        Method("ema_tuned", "EMA + replacement below half of N/K", "peer", _ema(half_a_share)),
        Method("vqgan_fc", "VQGAN-FC", "peer", _quantizer("factorized_vq")),
        Method("sim_vq", "SimVQ", "peer", _quantizer("sim_vq")),
        Method("fsq", "FSQ", "peer", _quantizer("fsq")),
        Method("ifsq", "iFSQ", "peer", _quantizer("fsq", slope=0.8)),
        Method("bsq", "BSQ", "peer", _quantizer("bsq")),
        Method("wasserstein_vq", "WassersteinVQ", "peer", _quantizer("wasserstein_vq")),
        Method("bridge_vq", "FVQ (VQBridge)", "peer", _quantizer("bridge_vq")),
        Method("ibq", "IBQ", "peer", _quantizer("ibq")),
        Method("cvq", "CVQ-VAE", "peer", _quantizer("cvq")),
        Method("opt_vq", "OptVQ", "peer", _quantizer("opt_vq")),
        Method("diveq", "DiVeQ", "peer", _quantizer("diveq")),
        Method("sf_diveq", "SF-DiVeQ", "peer", _quantizer("sf_diveq")),
        Method("ns_vq_paper", "NS-VQ, as printed", "paper", _quantizer("ns_vq_paper", decay_every=epoch)),
        Method("ns_vq_published", "NS-VQ, authors' code", "paper", _quantizer("ns_vq_published", decay_every=epoch)),
        Method("ns_vq_delta_e", "NS-VQ, ΔE (Suppl. 10)", "paper", _quantizer("ns_vq_delta_e", decay_every=epoch)),
        Method(
            "ns_vq_sequel",
            "NSVQ, the sequel",
            "paper",
            {**_quantizer("ns_vq_sequel", decay_every=epoch), "settle": 0.2},
        ),
        Method("trans_vq_paper", "TransVQ, as printed", "paper", _quantizer("trans_vq_paper")),
        Method("trans_vq_mlp_paper", "TransVQ-MLP, as printed", "paper", _quantizer("trans_vq_paper", **_MLP)),
        Method("trans_vq_published", "TransVQ, authors' code", "paper", _quantizer("trans_vq_published")),
        Method("ns_vq", "NS-VQ (driftvq)", "ours", _quantizer("ns_vq")),
        Method("trans_vq", "TransVQ (driftvq)", "ours", _quantizer("trans_vq")),
        Method("trans_vq_mlp", "TransVQ-MLP (driftvq)", "ours", _quantizer("trans_vq", **_MLP)),
        Method("autoencoder", "No quantizer (the ceiling)", "reference", _quantizer("none")),
        Method("kmeans_afterwards", "No quantizer, k-means afterwards", "reference", _quantizer("none"), "autoencoder"),
    )
}
"""The methods themselves: what ``--methods all`` takes."""

VARIANTS = {
    method.name: method
    for method in (
        # Our defaults with a part left out, or without their start.
        Method("ns_vq_random", "NS-VQ, random start", "ablation", _quantizer("ns_vq", kmeans_init=False)),
        Method("ns_vq_no_drift", "NS-VQ, no drift", "ablation", _quantizer("ns_vq", parts=["winners", "relocation"])),
        Method(
            "ns_vq_no_relocation", "NS-VQ, no relocation", "ablation", _quantizer("ns_vq", parts=["drift", "winners"])
        ),
        Method("ns_vq_winners_alone", "NS-VQ, winners alone", "ablation", _quantizer("ns_vq", parts=["winners"])),
        Method("ns_vq_no_winners", "NS-VQ, no winners", "ablation", _quantizer("ns_vq", parts=["drift", "relocation"])),
        Method("ns_vq_settled", "NS-VQ, at rest", "ablation", {**_quantizer("ns_vq"), "settle": 0.2}),
        Method(
            "trans_vq_mlp_no_drift",
            "TransVQ-MLP, no drift",
            "ablation",
            _quantizer("trans_vq", parts=["winners", "relocation"], **_MLP),
        ),
        Method(
            "trans_vq_mlp_random",
            "TransVQ-MLP, random start",
            "ablation",
            _quantizer("trans_vq", kmeans_init=False, **_MLP),
        ),
        Method(
            "trans_vq_mlp_no_relocation",
            "TransVQ-MLP, no relocation",
            "ablation",
            _quantizer("trans_vq", parts=["drift", "winners"], **_MLP),
        ),
        # Our defaults with another gradient estimator, as levels of a residual quantizer, and with another β.
        *(
            Method(
                f"{name}_{estimator}",
                f"{label}, {estimator}",
                "ours",
                _quantizer(quantizer, estimator=estimator, **more),
            )
            for name, label, quantizer, more in (
                ("ns_vq", "NS-VQ", "ns_vq", {}),
                ("trans_vq_mlp", "TransVQ-MLP", "trans_vq", _MLP),
            )
            for estimator in ("rotation", "modified", "gumbel")
        ),
        Method(
            "residual_ns_vq",
            "ResidualVQ, 8 levels of NS-VQ",
            "ours",
            _quantizer("residual_vq", num_quantizers=8, quantizer="ns_vq"),
        ),
        Method(
            "residual_trans_vq_mlp",
            "ResidualVQ, 8 levels of TransVQ-MLP",
            "ours",
            _quantizer("residual_vq", num_quantizers=8, quantizer="trans_vq", **_MLP),
        ),
        Method(
            "ns_vq_committed", f"NS-VQ, {_BETA}", "ablation", _quantizer("ns_vq", commitment_weight=COMMITMENT_WEIGHT)
        ),
        Method(
            "trans_vq_mlp_committed",
            f"TransVQ-MLP, {_BETA}",
            "ablation",
            _quantizer("trans_vq", commitment_weight=COMMITMENT_WEIGHT, **_MLP),
        ),
        Method(
            "ema_replace_our_beta",
            "EMA + replacement below 2, our β",
            "peer",
            _ema(2.0, commitment_weight=our_commitment),
        ),
        Method(
            "ema_tuned_our_beta",
            "EMA + replacement below half of N/K, our β",
            "peer",
            _ema(half_a_share, commitment_weight=our_commitment),
        ),
        Method("sim_vq_our_beta", "SimVQ, our β", "peer", _quantizer("sim_vq", commitment_weight=our_commitment)),
    )
}

METHODS = {**MAIN, **VARIANTS}
"""Every method; a new one is one more entry above."""


def find_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names, each once; ``"all"`` stands for all but variants."""
    wanted = dict.fromkeys(one for name in names for one in (MAIN if name == "all" else (name,)))
    return [METHODS[check_name("method", name, METHODS)] for name in wanted]
