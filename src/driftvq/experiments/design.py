"""What an experiment is made of: its recipe, the conditions that it varies, its scale, and what a user asked for."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from driftvq.records.comparisons import Point

VARIED = {  # what settings that are varied are called by themselves, and beside others; another one has its own name
    **{"codebook_size": ("codebook size K", "K"), "code_dim": ("code dimension D", "D"), "size": ("image size", "px")},
    **{"batch_size": ("batch size", "batch"), "learning_rate": ("learning rate", "lr")},
    **{"latent_scale": ("scale of the latents", "latents ×"), "warm_up": ("steps of warm-up", "warm-up")},
    "settle": ("share of the steps at rest", "rest"),
}


@dataclass(frozen=True)
class Condition:
    """What a place of an experiment changes in the settings, and for which methods (None: for all)."""

    settings: Mapping[str, Any]
    methods: tuple[str, ...] | None = None


def every(**values: Sequence[Any]) -> tuple[Condition, ...]:
    """All combinations of the values of several settings."""
    return tuple(Condition(dict(zip(values, chosen, strict=True))) for chosen in product(*values.values()))


def titles(setting: str) -> tuple[str, str]:
    """What a setting is called by itself, and beside others."""
    return VARIED.get(setting, (setting.replace("_", " "), setting.replace("_", " ")))


def short(value: Any) -> str:
    """A value for names: 0.0005 and 5e-05 rather than all digits."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def name_of(settings: Mapping[str, Any], alone: bool) -> Point:
    """A condition for readers: the value, if the experiment varies one setting alone, else names and values.

    >>> name_of({"codebook_size": 64}, alone=True), name_of({"codebook_size": 64, "code_dim": 3}, alone=False)
    (64, 'K 64, D 3')
    """
    if not settings:
        return None
    if alone:
        return next(iter(settings.values()))  # type: ignore[no-any-return]
    return ", ".join(f"{titles(name)[1]} {short(value)}" for name, value in settings.items())


@dataclass(frozen=True)
class Published:
    """What the paper reports: values by method and condition (None without one), metric by metric."""

    source: str
    setting: str
    values: Mapping[tuple[str, Point], Mapping[str, float]]


@dataclass(frozen=True)
class Recipe:
    """An experiment: a base and what is varied; seeds, images and metrics are those, unless asked otherwise."""

    name: str
    title: str
    question: str
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # what differs from the scale's, at every scale
    at_scale: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # then at single ones
    method_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # and for single methods
    conditions: tuple[Condition, ...] = ()
    same_images: bool = False  # every condition sees as many images as the base, rather than as many steps
    seeds: int | None = None
    evaluation: int | None = None  # None: as many images as the scale has
    metrics: tuple[str, ...] = ()  # the first one ranks; empty: the scale's
    probes: tuple[int, ...] = ()  # steps after which usage is counted over enough latents, as it is at the end
    published: Published | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """A size: settings of a :class:`driftvq.training.TrainConfig`; what is measured, in the order of the columns."""

    name: str
    settings: Mapping[str, Any]
    metrics: tuple[str, ...]
    evaluation: int | None = None  # images to evaluate on; None: all that are held out
    kmeans_images: int | None = None  # training images for a codebook made afterwards; None: all
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings that win over a recipe's own
    sweeps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # replace a recipe's, by the setting it varies
    without_weights: bool = False  # metrics that are networks are left out
    needs_data: bool = False  # the embedded photographs are too few
    most: Mapping[str, int] = field(default_factory=dict)  # of what conditions set, of images to evaluate on, of seeds


_SMOKE = {"network": "small", "size": 32, "steps": 2, "batch_size": 4, "code_dim": 3, "codebook_size": 32}
_MOST = {"codebook_size": 32, "code_dim": 4, "batch_size": 4, "size": 32, "warm_up": 1, "evaluation": 8, "seeds": 1}
# In float32, as the paper trains, whatever else the hardware could: what is found must not hang on the machine.
_PAPER = {
    **{"epochs": 40.0, "batch_size": 16, "learning_rate": 5e-4, "crop": "center", "flip": False},
    "precision": "32-true",
}
_RARELY = {"val_every": 1000, "checkpoint_every": 1000}
_PAPER_METRICS = ("rfid", "lpips_alex", "ssim", "psnr", "kid", "ms_ssim", "usage", "perplexity")

_SCALES = (
    Scale(  # seconds
        "smoke",
        {"val_every": 2, "val_images": 4, "log_every": 1, "probe_every": 2, "checkpoint_every": 2},
        metrics=("psnr", "ssim", "usage", "perplexity"), without_weights=True, evaluation=8, kmeans_images=8,
        overrides={**_SMOKE, "epochs": None, "loss": "mse"}, most=_MOST,
        sweeps={"codebook_size": (16, 32), "batch_size": (2, 4)},
    ),
    Scale(  # minutes
        "laptop",
        {"network": "small", "size": 64, "steps": 400, "batch_size": 16, "learning_rate": 5e-4, "val_every": 50,
         "val_images": 48, "log_every": 10, "probe_every": 50, "checkpoint_every": 100},
        metrics=("kid", "lpips_alex", "rfid", "ssim", "psnr", "usage", "perplexity"), evaluation=120, kmeans_images=512,
    ),
    Scale(  # the paper's epochs, on small images
        "overnight", {**_PAPER, **_RARELY, "network": "small", "size": 32, "probe_every": 1000},
        metrics=_PAPER_METRICS, needs_data=True,
    ),
    Scale(  # the published setting, on a GPU
        "paper", {**_PAPER, **_RARELY, "network": "paper", "size": 256, "workers": 4},
        metrics=_PAPER_METRICS, needs_data=True,
    ),
)  # fmt: skip
SCALES = {scale.name: scale for scale in _SCALES}
DEFAULT_SCALE = "laptop"
# Fields of a request that are settings of every training, as they stand.
SETTINGS = ("data", "val_data", "code_dim", "batch_size", "size", "steps")


@dataclass(frozen=True)
class Request:
    """A recipe, its scale, and what shall differ from both; None where nothing does."""

    recipe: str = "compare"
    scale: str = DEFAULT_SCALE
    name: str | None = None
    data: str | None = None
    val_data: str | None = None
    methods: tuple[str, ...] | None = None
    conditions: tuple[str, ...] | None = None
    seeds: int | None = None
    first_seed: int | None = None
    codebook_size: tuple[int, ...] | None = None
    code_dim: int | None = None
    batch_size: int | None = None
    size: int | None = None
    steps: int | None = None
    evaluation: int | None = None

    def command(self) -> str:
        words = ["driftvq", "compare"] if self.recipe == "compare" else ["driftvq", "reproduce", self.recipe]
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if value is not None:
                words += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
        return shlex.join(words)


# Fields that a flag sets.
FLAGS = {entry.name: "--" + entry.name.replace("_", "-") for entry in fields(Request) if entry.name != "recipe"}
FLAGS["evaluation"] = "--evaluation-images"
