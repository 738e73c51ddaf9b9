"""The methods that can be compared: the paper's and its baselines' own forms, our defaults, and variants of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftvq.names import check_name
from driftvq.quantizers.codebooks.following import COMMITMENT_WEIGHT, default_commitment
from driftvq.records.comparisons import Group
from driftvq.training.config import TrainConfig

LATENT_STRIDE = 4  # pixels a side of a latent in the networks that comparisons train


@dataclass(frozen=True)
class Method:
    """A contestant.

    ``settings`` are what it changes in a :class:`driftvq.training.TrainConfig`; an option of the quantizer may be a
    function of the config and of the number of training images.
    """

    name: str
    label: str
    group: Group
    settings: Mapping[str, Any] = field(default_factory=dict)
    afterwards: str | None = None  # it has no training of its own, but gives a codebook to the network of this method

    @property
    def has_codebook(self) -> bool:
        """Whether there are codes: a plain autoencoder has none."""
        return self.afterwards is not None or self.settings["quantizer"] != "none"


def epoch(config: TrainConfig, images: int) -> int:
    """The batches of a pass over the data: a quantizer counts every forward pass, accumulated or not."""
    return max(1, round(images / config.batch_size))


def half_a_share(config: TrainConfig, images: int) -> float:
    """Half of N/K: what a code gets of a batch's N latents if all K get the same."""
    latents = config.batch_size * (config.size // LATENT_STRIDE) ** 2
    return 0.5 * latents / config.codebook_size


def our_commitment(config: TrainConfig, images: int) -> float:
    """The β of our defaults."""
    return default_commitment(config.code_dim)


def resolved(config: TrainConfig, images: int) -> TrainConfig:
    """The config with those options worked out that depend on it."""
    options = config.quantizer_options.items()
    worked_out = {name: value(config, images) if callable(value) else value for name, value in options}
    return replace(config, quantizer_options=worked_out)


def _method(name: str, label: str, group: Group, quantizer: str | None = None, /, **options: Any) -> Method:
    """A quantizer of the same name unless another one is named, with its options."""
    return Method(name, label, group, {"quantizer": quantizer or name, "quantizer_options": options})


def _ema(name: str, label: str, replaced_below: float | Callable[[TrainConfig, int], float], **options: Any) -> Method:
    """EMA with a k-means start, and codes replaced that fewer latents per batch than this select on average."""
    return _method(name, label, "peer", "ema_vq", kmeans_init=True, threshold_ema_dead_code=replaced_below, **options)


def _at_rest(method: Method) -> Method:
    return replace(method, settings={**method.settings, "settle": 0.2})


_MLP: dict[str, Any] = {"transform": "mlp"}
_OURS = (("ns_vq", "NS-VQ", "ns_vq", dict[str, Any]()), ("trans_vq_mlp", "TransVQ-MLP", "trans_vq", _MLP))
_VQP: dict[str, Any] = {"decay": 0.8, "commitment_weight": 1.0, "estimator": "rotation"}  # its defaults
_BETA: dict[str, Any] = {"commitment_weight": COMMITMENT_WEIGHT}
_OUR_BETA: dict[str, Any] = {"commitment_weight": our_commitment}

_MAIN = (
    _method("vq", "VQ-VAE", "peer"),
    _method("vqvae2", "VQVAE2 (EMA)", "peer", "ema_vq"),
    _method("vqp_ema", "vector-quantize-pytorch's EMA", "peer", "ema_vq", **_VQP),
    # Far below one: with more codes than latents in a batch, one would replace every code at every step.
    _ema("vqgan_ema", "VQGAN-EMA", 0.05),
    _ema("vqgan_ema_authors", "VQGAN-EMA, the authors' settings", 1.0, decay=0.9995),
    _ema("ema_replace", "EMA + replacement below 2", 2.0),
    _ema("ema_tuned", "EMA + replacement below half of N/K", half_a_share),
    _method("vqgan_fc", "VQGAN-FC", "peer", "factorized_vq"),
    _method("sim_vq", "SimVQ", "peer"),
    _method("fsq", "FSQ", "peer"),
    # At even numbers of levels with FSQ's shift by half a step.
    _method("ifsq", "iFSQ", "peer", "fsq", slope=0.8),
    _method("bsq", "BSQ", "peer"),
    _method("wasserstein_vq", "WassersteinVQ", "peer"),
    _method("bridge_vq", "FVQ (VQBridge)", "peer"),
    _method("ibq", "IBQ", "peer"),
    _method("cvq", "CVQ-VAE", "peer"),
    _method("opt_vq", "OptVQ", "peer"),
    _method("diveq", "DiVeQ", "peer"),
    _method("sf_diveq", "SF-DiVeQ", "peer"),
    _method("ns_vq_paper", "NS-VQ, as printed", "paper", decay_every=epoch),
    _method("ns_vq_published", "NS-VQ, authors' code", "paper", decay_every=epoch),
    _method("ns_vq_delta_e", "NS-VQ, ΔE (Suppl. 10)", "paper", decay_every=epoch),
    _at_rest(_method("ns_vq_sequel", "NSVQ, the sequel", "paper", decay_every=epoch)),
    _method("trans_vq_paper", "TransVQ, as printed", "paper"),
    _method("trans_vq_mlp_paper", "TransVQ-MLP, as printed", "paper", "trans_vq_paper", transform="mlp"),
    _method("trans_vq_published", "TransVQ, authors' code", "paper"),
    _method("ns_vq", "NS-VQ (driftvq)", "ours"),
    _method("trans_vq", "TransVQ (driftvq)", "ours"),
    _method("trans_vq_mlp", "TransVQ-MLP (driftvq)", "ours", "trans_vq", **_MLP),
    _method("autoencoder", "No quantizer (the ceiling)", "reference", "none"),
    replace(
        _method("kmeans_afterwards", "No quantizer, k-means afterwards", "reference", "none"), afterwards="autoencoder"
    ),
)
MAIN = {method.name: method for method in _MAIN}  # the methods themselves: what ``--methods all`` takes

_NO_DRIFT, _NO_MOVE, _NO_WINNERS = ["winners", "relocation"], ["drift", "winners"], ["drift", "relocation"]

_VARIANTS = (
    # Our defaults with a part left out, or without their start.
    _method("ns_vq_random", "NS-VQ, random start", "ablation", "ns_vq", kmeans_init=False),
    _method("ns_vq_no_drift", "NS-VQ, no drift", "ablation", "ns_vq", parts=_NO_DRIFT),
    _method("ns_vq_no_relocation", "NS-VQ, no relocation", "ablation", "ns_vq", parts=_NO_MOVE),
    _method("ns_vq_winners_alone", "NS-VQ, winners alone", "ablation", "ns_vq", parts=["winners"]),
    _method("ns_vq_no_winners", "NS-VQ, no winners", "ablation", "ns_vq", parts=_NO_WINNERS),
    _at_rest(_method("ns_vq_settled", "NS-VQ, at rest", "ablation", "ns_vq")),
    _method("trans_vq_mlp_random", "TransVQ-MLP, random start", "ablation", "trans_vq", kmeans_init=False, **_MLP),
    _method("trans_vq_mlp_no_relocation", "TransVQ-MLP, no relocation", "ablation", "trans_vq", parts=_NO_MOVE, **_MLP),
    # Our defaults with another gradient estimator, as levels of a residual quantizer, and with another β.
    *(
        _method(f"{name}_{estimator}", f"{label}, {estimator}", "ours", base, estimator=estimator, **options)
        for name, label, base, options in _OURS
        for estimator in ("rotation", "modified", "gumbel")
    ),
    *(
        _method(f"residual_{name}", f"ResidualVQ, 8 levels of {label}", "ours", "residual_vq",
                num_quantizers=8, quantizer=base, **options)
        for name, label, base, options in _OURS
    ),
    *(
        _method(f"{name}_committed", f"{label}, β = {COMMITMENT_WEIGHT}", "ablation", base, **_BETA, **options)
        for name, label, base, options in _OURS
    ),
    _ema("ema_replace_our_beta", "EMA + replacement below 2, our β", 2.0, **_OUR_BETA),
    _ema("ema_tuned_our_beta", "EMA + replacement below half of N/K, our β", half_a_share, **_OUR_BETA),
    _method("sim_vq_our_beta", "SimVQ, our β", "peer", "sim_vq", **_OUR_BETA),
)  # fmt: skip
VARIANTS = {method.name: method for method in _VARIANTS}

METHODS = {**MAIN, **VARIANTS}  # every method; a new one is one more entry above


def find_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names, each once; ``"all"`` stands for all but variants."""
    wanted = dict.fromkeys(one for name in names for one in (MAIN if name == "all" else (name,)))
    return [METHODS[check_name("method", name, METHODS, "driftvq reproduce --list")] for name in wanted]
