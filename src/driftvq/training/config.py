"""The settings of a training run, and the reasons to refuse some of them before any work."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from math import inf
from typing import Any

from driftvq.names import check_name, shortened

LOSSES = ("mse", "mse+lpips")
CROPS = ("random", "center")
PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
LAYOUTS = ("auto", "on", "off")
MONITORS = ("psnr", "ssim", "loss", "usage", "perplexity")  # validation metrics that can choose the best model

SSIM_LEAST_SIZE = 11  # side of its window
EMBEDDED_STEPS = 800  # default number of steps on the embedded photographs: a first result in minutes on two cores
DATA_STEPS = 20_000  # default number of steps on a user's own images
_STEPS = f"optimizer steps; default: {EMBEDDED_STEPS:,} on the embedded photographs, {DATA_STEPS:,} on --data"
SOURCES = "a folder of images, a list file (.txt), .tar shards or hf:NAME"


def _setting(section: str, default: Any, text: str, **more: Any) -> Any:
    """A field with what a user is told about it; ``more``: ``choices``, ``metavar``, ``least``, ``keeps_course``."""
    value: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**value, metadata={"section": section, "help": text, **more})


_model, _data, _train, _host = (partial(_setting, name) for name in ("model", "data", "training", "machine"))
_where, _record = (partial(_setting, name, keeps_course=True) for name in ("machine", "record"))
_source = partial(_data, None, metavar="SPEC")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that a training run depends on.

    Each field is a flag of ``driftvq train`` and a key of its YAML files. A field with ``keeps_course`` in its metadata
    does not change the weights that a run reaches at a step, so it may differ when a run is resumed.
    """

    network: str = _model("small", "encoder and decoder: small, paper, taming, taming_f4 or taming_small")
    quantizer: str = _model("ns_vq", "ns_vq, trans_vq, vq, ema_vq, … or none for a plain autoencoder")
    codebook_size: int = _model(1024, "number of codes, K", least=1)
    code_dim: int = _model(64, "channels of the latents, D", least=1)
    quantizer_options: dict[str, Any] = _model(  # noqa: RUF009 - a field
        dict, "further arguments of the quantizer, e.g. commitment_weight=0.25", metavar="KEY=VALUE"
    )
    latent_scale: float = _model(1.0, "factor of the latents before the quantizer, taken back behind it")

    data: str | None = _source(f"{SOURCES}; default: embedded photographs")
    val_data: str | None = _source("images to validate on, like --data; default: the held-out part of --data")
    val_share: float = _data(0.05, "share of --data to hold out where it has no split of its own")
    size: int = _data(64, "side of the square training images in pixels", least=1)
    crop: str = _data("random", "where to cut training images", choices=CROPS)
    flip: bool = _data(True, "mirror half of the training images")
    strict: bool = _data(False, "stop at an unreadable image instead of skipping it", keeps_course=True)
    workers: int = _data(1, "processes that read images, per device; 0: none of their own", least=0, keeps_course=True)

    steps: int | None = _train(None, _STEPS, least=1, keeps_course=True)
    epochs: float | None = _train(None, "passes over the data, instead of --steps", keeps_course=True)
    batch_size: int = _train(16, "images per step and device", least=1)
    accumulate: int = _train(1, "batches per optimizer step, whose gradients are averaged", least=1)
    learning_rate: float = _train(5e-4, "of Adam")
    betas: tuple[float, float] = _train((0.9, 0.999), "of Adam")
    loss: str = _train("mse", "of the reconstruction", choices=LOSSES)
    lpips_weight: float = _train(1.0, "factor of the LPIPS term of mse+lpips")
    adversarial_weight: float = _train(0.0, "factor of the adversarial term; 0: no discriminator")
    adversarial_start: int = _train(10_000, "first step with the adversarial term", least=0)
    clip: float = _train(0.0, "largest norm of the gradient; 0: any")
    weight_ema: float = _train(0.0, "decay of the moving average of the weights that is validated and saved; 0: none")
    warm_up: int = _train(
        0, "first steps as a plain autoencoder, before the quantizer sees a latent; in one process", least=0
    )
    settle: float = _train(
        0.0,
        "share of the steps, the last ones, in which the encoder rests: the codebook goes to k-means of its latents, "
        "and the decoder learns alone; 0: none",
    )
    seed: int = _train(0, "of weights, data order and crops", least=0)

    accelerator: str = _where("auto", "Lightning's: auto, cpu, gpu, mps, …")
    devices: int | str = _where("auto", "Lightning's: a number, a list such as 0,1, or auto (one process on CPUs)")
    num_nodes: int = _where(1, "Lightning's: machines", least=1)
    strategy: str = _where("auto", "Lightning's: auto, ddp or one of its forms")
    precision: str = _host("auto", "auto: bf16-mixed where the hardware computes it, else 32-true", choices=PRECISIONS)
    channels_last: str = _host("auto", "memory layout of images and kernels", choices=LAYOUTS)

    val_every: int = _record(500, "steps between validations", least=1)
    val_images: int = _record(512, "images to validate on at most; 0: all", least=0)
    monitor: str = _record("psnr", "validation metric that chooses the best model", choices=MONITORS)
    patience: int = _record(0, "stop after so many validations without a better one; 0: never", least=0)
    checkpoint_every: int = _record(500, "steps between checkpoints", least=1)
    log_every: int = _record(20, "steps between entries of the log", least=1)
    probe_every: int = _record(200, "steps between readings of the drift meter; 0: never", least=0)
    tensorboard: bool = _record(True, "write TensorBoard events")
    out: str | None = _record(None, "run folder; default: runs/DATE-TIME-QUANTIZER", metavar="DIR")

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the field."""
        _check_fields(self)
        _check_combinations(self)

    def model_fields(self) -> dict[str, Any]:
        """The arguments of ``ModelConfig``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["section"] == "model"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML and JSON."""
        return {**asdict(self), "betas": list(self.betas)}


def resolve_steps(config: TrainConfig, images: int, processes: int = 1) -> int:
    """The number of optimizer steps, for a training set of so many images and so many processes."""
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        return max(1, round(config.epochs * images / (config.batch_size * config.accumulate * processes)))
    return EMBEDDED_STEPS if config.data is None else DATA_STEPS


def course_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields that differ between two runs and that change where the run goes, as ``name: old → new``."""
    kept = {f.name for f in fields(TrainConfig) if f.metadata.get("keeps_course")}
    return [f"{name}: {old[name]!r} → {new[name]!r}" for name in old if name not in kept and old[name] != new[name]]


_RANGES: dict[str, tuple[tuple[str, ...], Callable[[float], bool]]] = {
    "be 0 or larger": (("lpips_weight", "adversarial_weight", "clip"), lambda x: 0 <= x < inf),
    "be larger than 0": (("learning_rate", "latent_scale", "epochs"), lambda x: 0 < x < inf),
    "lie between 0 (allowed) and 1 (not allowed)": (("betas", "weight_ema", "settle"), lambda x: 0 <= x < 1),
    "lie between 0 and 1, neither allowed": (("val_share",), lambda x: 0 < x < 1),
}


def _check_fields(config: TrainConfig) -> None:
    for f in fields(config):
        value, least = getattr(config, f.name), f.metadata.get("least")
        if "choices" in f.metadata:
            check_name(f.name, value, f.metadata["choices"])
        if least is not None and value is not None and value < least:
            raise ValueError(f"{f.name} must be a whole number of at least {least}, got {shortened(value)}")
    for allowed, (names, fits) in _RANGES.items():
        for name in names:
            value = getattr(config, name)
            if value is not None and not all(map(fits, value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{name} must {allowed}, got {value!r}")


def _check_combinations(config: TrainConfig) -> None:
    if config.steps is not None and config.epochs is not None:
        raise ValueError(f"give steps or epochs, not both; got steps={config.steps}, epochs={config.epochs:g}")
    if config.monitor in ("usage", "perplexity") and config.quantizer == "none":
        raise ValueError(f"monitor must be a metric of images where there is no quantizer, got {config.monitor!r}")
    if config.monitor == "ssim" and config.size < SSIM_LEAST_SIZE:
        raise ValueError(f"monitor ssim needs images of at least {SSIM_LEAST_SIZE} px, got size {config.size}")
    strategy = shortened(config.strategy)
    if not (config.strategy == "auto" or config.strategy.startswith("ddp")):
        raise ValueError(f"strategy must be auto or a form of ddp, which keeps a model whole; got {strategy}")
    if config.strategy.endswith(("_spawn", "_fork", "_notebook")):
        raise ValueError(f"strategy must be one that starts the command anew, such as ddp; got {strategy}")
