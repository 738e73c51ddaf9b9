"""The methods that can be compared, told apart by name: the paper's and its baselines' own forms, and our defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftvq.names import check_name


@dataclass(frozen=True)
class Method:
    """A contestant.

    Attributes:
        name: unique.
        label: for readers.
        group: "ours", "paper" (the paper's literal forms), "peer" or "reference".
        settings: what it changes in a :class:`driftvq.training.TrainConfig`.
        decays_per_epoch: its kernel narrows after each epoch, whose steps depend on the data.
        afterwards: it has no training of its own, but gives a codebook to the network of this method.
    """

    name: str
    label: str
    group: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    decays_per_epoch: bool = False
    afterwards: str | None = None

    @property
    def has_codebook(self) -> bool:
        """Whether there are codes: a plain autoencoder has none."""
        return self.afterwards is not None or self.settings["quantizer"] != "none"


def _quantizer(name: str, **options: Any) -> dict[str, Any]:
    return {"quantizer": name, "quantizer_options": options}


DEAD_BELOW = 0.05
"""Average selections per batch under which VQGAN-EMA replaces a code; far below one, since with more codes than
latents in a batch a threshold of one would replace every code at every step."""

METHODS = {
    method.name: method
    for method in (
        Method("vq", "VQ-VAE", "peer", _quantizer("vq")),
        Method("vqvae2", "VQVAE2 (EMA)", "peer", _quantizer("ema_vq")),
        Method(
            "vqgan_ema",
            "VQGAN-EMA",
            "peer",
            _quantizer("ema_vq", threshold_ema_dead_code=DEAD_BELOW, kmeans_init=True),
        ),
        Method("vqgan_fc", "VQGAN-FC", "peer", _quantizer("factorized_vq")),
        Method("sim_vq", "SimVQ", "peer", _quantizer("sim_vq")),
        Method("fsq", "FSQ", "peer", _quantizer("fsq")),
        Method("ns_vq_paper", "NS-VQ, as printed", "paper", _quantizer("ns_vq_paper"), decays_per_epoch=True),
        Method(
            "ns_vq_published",
            "NS-VQ, authors' code",
            "paper",
            _quantizer("ns_vq_published"),
            decays_per_epoch=True,
        ),
        Method("ns_vq_delta_e", "NS-VQ, ΔE (Suppl. 10)", "paper", _quantizer("ns_vq_delta_e"), decays_per_epoch=True),
        Method("trans_vq_paper", "TransVQ, as printed", "paper", _quantizer("trans_vq_paper")),
        Method("trans_vq_mlp_paper", "TransVQ-MLP, as printed", "paper", _quantizer("trans_vq_paper", transform="mlp")),
        Method("trans_vq_published", "TransVQ, authors' code", "paper", _quantizer("trans_vq_published")),
        Method("ns_vq", "NS-VQ (driftvq)", "ours", _quantizer("ns_vq")),
        Method("trans_vq", "TransVQ (driftvq)", "ours", _quantizer("trans_vq")),
        Method("trans_vq_mlp", "TransVQ-MLP (driftvq)", "ours", _quantizer("trans_vq", transform="mlp")),
        Method("autoencoder", "No quantizer (the ceiling)", "reference", _quantizer("none")),
        Method(
            "kmeans_afterwards",
            "No quantizer, k-means afterwards",
            "reference",
            _quantizer("none"),
            afterwards="autoencoder",
        ),
    )
}
"""Every method; a new one is one more entry."""


def find_methods(names: Sequence[str]) -> list[Method]:
    """The methods of these names, each once."""
    return [METHODS[check_name("method", name, METHODS)] for name in dict.fromkeys(names)]
