"""What an experiment is: the methods, what is varied, and what the paper reports of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAPER_K = 8192
"""The paper's tables print 8912; the configurations that its authors published say 8192."""


@dataclass(frozen=True)
class Sweep:
    """One setting that takes several values."""

    field: str
    values: tuple[int, ...]
    label: str


@dataclass(frozen=True)
class Published:
    """What the paper reports.

    Attributes:
        source: where.
        setting: of its experiment.
        values: by method and value of the sweep (None without one), metric by metric.
    """

    source: str
    setting: str
    values: Mapping[tuple[str, int | None], Mapping[str, float]]


@dataclass(frozen=True)
class Recipe:
    """A table or figure: a base and the one change.

    Attributes:
        name: on the command line.
        title: for readers.
        question: one sentence that the result answers.
        methods: names, in the order of the rows.
        settings: what differs from the scale's settings, at every scale.
        paper_settings: what differs at the paper's scale alone.
        method_settings: what differs for single methods.
        sweep: what is varied.
        same_images: every place of a sweep sees as many images, rather than as many steps.
        published: the paper's numbers.
        notes: what a reader must know.
    """

    name: str
    title: str
    question: str
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper_settings: Mapping[str, Any] = field(default_factory=dict)
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sweep: Sweep | None = None
    same_images: bool = False
    published: Published | None = None
    notes: tuple[str, ...] = ()


CODEBOOK_SIZES = Sweep("codebook_size", (64, 1024, PAPER_K), "codebook size K")
TABLE_METHODS = (
    *("vqgan_fc", "vqvae2", "vqgan_ema", "sim_vq"),
    *("ns_vq_paper", "trans_vq_paper", "ns_vq", "trans_vq"),
)
"""The six methods of the paper's tables in their own forms, and our two defaults."""

CELEBA = "CelebA-HQ 256×256, 40 epochs, batches of 16, Adam 5e-4, the network of Tab. 1"
PRINTED_K = "The paper's tables print K = 8912; its authors' configurations say 8192, which is used here."


def over_sizes(
    rows: Mapping[str, tuple[float, ...]], sizes: tuple[int, ...] = CODEBOOK_SIZES.values
) -> dict[tuple[str, int | None], dict[str, float]]:
    """The paper's tables: each row has rFID and usage in turn, for each codebook size."""
    return {
        (method, size): {"rfid": numbers[2 * place], "usage": numbers[2 * place + 1]}
        for method, numbers in rows.items()
        for place, size in enumerate(sizes)
    }
