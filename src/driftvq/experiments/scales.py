"""How large an experiment is: for a test, for a laptop, and as the paper had it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAPTOP_METRICS = ("kid", "lpips_alex", "rfid", "ssim", "psnr", "usage", "perplexity")
PAPER_METRICS = ("rfid", "lpips_alex", "ssim", "psnr", "kid", "ms_ssim", "usage", "perplexity")
PLAIN_METRICS = ("psnr", "ssim", "usage", "perplexity")
"""Those that need no weights."""


@dataclass(frozen=True)
class Scale:
    """A size.

    Attributes:
        settings: of a :class:`driftvq.training.TrainConfig`.
        evaluation: images to evaluate on; None: all that are held out.
        metrics: in the order of the columns, the one that ranks first.
        seeds: unless asked otherwise.
        kmeans_images: training images for a codebook made afterwards; None: all.
        overrides: settings that win over a recipe's own.
        sweeps: values that replace a recipe's, by the field that it varies.
    """

    name: str
    settings: Mapping[str, Any]
    evaluation: int | None
    metrics: tuple[str, ...]
    seeds: int
    kmeans_images: int | None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    sweeps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


_SMOKE = {"network": "small", "size": 32, "steps": 2, "batch_size": 4, "code_dim": 3, "codebook_size": 32}

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            {"val_every": 2, "val_images": 4, "log_every": 1, "probe_every": 2, "checkpoint_every": 2},
            evaluation=8,
            metrics=PLAIN_METRICS,
            seeds=1,
            kmeans_images=8,
            overrides={**_SMOKE, "epochs": None, "loss": "mse", "kmeans_batches": 4},
            sweeps={"codebook_size": (16, 32), "batch_size": (2, 4)},
        ),
        Scale(
            "laptop",
            {
                **{"network": "small", "size": 64, "steps": 400, "batch_size": 16, "learning_rate": 5e-4},
                **{"val_every": 50, "val_images": 48, "log_every": 10, "probe_every": 50, "checkpoint_every": 100},
            },
            evaluation=120,
            metrics=LAPTOP_METRICS,
            seeds=1,
            kmeans_images=512,
        ),
        Scale(
            "paper",
            {
                **{"network": "paper", "size": 256, "epochs": 40.0, "batch_size": 16, "learning_rate": 5e-4},
                **{"crop": "center", "flip": False, "workers": 4, "val_every": 1000, "checkpoint_every": 1000},
            },
            evaluation=None,
            metrics=PAPER_METRICS,
            seeds=1,
            kmeans_images=None,
        ),
    )
}
"""``smoke``: seconds; ``laptop``: minutes; ``paper``: the published setting, on a GPU."""
