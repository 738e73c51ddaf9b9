import re
import subprocess
import sys
from dataclasses import fields

import pytest

from driftvq.metrics.similarity import WINDOW
from driftvq.training.config import SSIM_LEAST_SIZE, TrainConfig, course_changes, resolve_steps


def test_the_papers_settings_are_the_defaults():
    config = TrainConfig()
    assert (config.learning_rate, config.batch_size, config.loss, config.betas) == (5e-4, 16, "mse", (0.9, 0.999))


def test_every_field_says_what_it_is():
    for f in fields(TrainConfig):
        assert f.metadata["section"] in ("model", "data", "training", "machine", "record")
        assert len(f.metadata["help"]) > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codebook_size": 0}, "codebook_size must be a whole number of at least 1, got 0"),
        ({"loss": "mae"}, "unknown loss 'mae'; known, nearest first: mse"),
        ({"learning_rate": 0.0}, "learning_rate must be larger than 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be larger than 0, got nan"),
        ({"betas": (0.9, 1.0)}, "betas must lie between 0 (allowed) and 1 (not allowed), got (0.9, 1.0)"),
        ({"weight_ema": 1.0}, "weight_ema must lie"),
        ({"clip": -1.0}, "clip must be 0 or larger, got -1.0"),
        ({"val_share": 1.0}, "val_share must lie between 0 and 1"),
        ({"epochs": 0.0}, "epochs must be larger than 0"),
        ({"steps": 5, "epochs": 2.0}, "give steps or epochs, not both; got steps=5, epochs=2"),
        ({"monitor": "pnsr"}, "unknown monitor 'pnsr'; known, nearest first: psnr"),
    ],
)
def test_wrong_values_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        TrainConfig(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "processes", "steps"),
    [
        ({"steps": 7}, 1, 7),
        ({"epochs": 40.0, "batch_size": 16, "data": "x"}, 1, 70_000),
        ({"epochs": 40.0, "batch_size": 16, "data": "x"}, 8, 8750),
        ({"epochs": 0.5, "batch_size": 4, "accumulate": 7, "data": "x"}, 1, 500),
        ({"epochs": 1e-9}, 1, 1),
    ],
)
def test_epochs_become_steps(settings, processes, steps):
    assert resolve_steps(TrainConfig(**settings), 28_000, processes) == steps


def test_default_steps_depend_on_the_data():
    assert resolve_steps(TrainConfig(), 100) < resolve_steps(TrainConfig(data="photos"), 100)


def test_only_what_changes_the_course_counts_as_a_change():
    old = TrainConfig().to_dict()
    assert course_changes(old, TrainConfig(steps=9, workers=3, devices=2, val_every=7, patience=3).to_dict()) == []
    changes = course_changes(old, TrainConfig(seed=1, codebook_size=64).to_dict())
    assert changes == ["codebook_size: 1024 → 64", "seed: 0 → 1"]


def test_a_config_needs_no_torch():
    code = "import sys, driftvq.cli.train, driftvq.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantizer": "none", "monitor": "usage"}, "monitor must be a metric of images"),
        ({"size": SSIM_LEAST_SIZE - 1, "monitor": "ssim"}, "monitor ssim needs images of at least 11 px, got size 10"),
    ],
)
def test_what_is_monitored_exists(settings, message):
    assert SSIM_LEAST_SIZE == WINDOW
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)
