"""One training run, from its config to its result."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from driftvq.models import VQVAE, ModelConfig
from driftvq.training.callbacks import DriftCallback, JsonlLogger, LiveProgress, SampleImages
from driftvq.training.checkpoints import AtomicCheckpointIO, list_checkpoints, newest_checkpoint
from driftvq.training.codebook_start import CodebookStart
from driftvq.training.config import TrainConfig, resolve_steps
from driftvq.training.datamodule import RunImages
from driftvq.training.folder import LAUNCHED, is_first_process, new_run, write_run_files
from driftvq.training.keeping import Keeper
from driftvq.training.machine import pick_accelerator, pick_channels_last, pick_precision
from driftvq.training.module import STATE, TokenizerModule
from driftvq.training.random_state import seed_all
from driftvq.training.records import METRICS_FILE
from driftvq.training.stopping import StopSignals

SAMPLES = 16
"""Validation images whose reconstructions are shown."""
PROBES = 16
"""Validation images that the drift meter looks at."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        run: its folder.
        step: optimizer steps taken.
        latest: values of the last validation, and its ``step``.
        best: those of the best one, whose model is in ``run/model``.
        skipped: images that could not be read.
    """

    run: Path
    step: int
    latest: dict[str, float]
    best: dict[str, float]
    skipped: int


def train(config: TrainConfig, *, resume: bool = False, say: Say = lambda line: None) -> TrainResult:
    """Train a tokenizer.

    Args:
        config: of the run; ``config.out`` is the folder to continue when ``resume``.
        resume: go on from the newest checkpoint that can be read.
        say: told, in the first process, what a user should know.

    Raises:
        InterruptedTrainingError: after Ctrl-C or SIGTERM; a checkpoint is saved.
        NonFiniteError: the loss is not a number any more.
    """
    with _quiet():
        return _train(config, resume, say if is_first_process() else _silent)


def _train(config: TrainConfig, resume: bool, say: Say) -> TrainResult:
    run = Path(config.out or "") if resume else new_run(config)
    checkpoint, state = _resume_point(run, say) if resume else (None, {})
    seed_all(config.seed)
    model = VQVAE(ModelConfig.from_dict(config.model_fields()))
    images = RunImages(config)
    processes = 1 if config.epochs is None else Trainer(**_machine(config), logger=False).world_size
    steps = resolve_steps(config, len(images.train_source), processes)
    module = TokenizerModule(model, config, steps, run, pick_channels_last(config))
    signals = StopSignals()
    keeper = Keeper(run, config, signals, say)
    done = state[STATE]["batches"] // config.accumulate if state else 0
    if done >= steps:
        say(f"{run} is already at step {done} of {steps}: nothing to do")
        keeper.load_state_dict(state["callbacks"][keeper.state_key])
        return TrainResult(run, done, keeper.latest, keeper.best, module.skipped.count())
    if is_first_process():
        write_run_files(run, config, steps)
        os.environ[LAUNCHED] = str(run)
    callbacks = [*_callbacks(config, images, run, say), signals, keeper]
    trainer = make_trainer(config, steps, run, callbacks, done)
    say(describe(config, images, module, trainer))
    trainer.fit(module, datamodule=images, ckpt_path=checkpoint)
    return TrainResult(run, module.steps_done, keeper.latest, keeper.best, module.skipped.count())


def _resume_point(run: Path, say: Say) -> tuple[Path | None, dict[str, Any]]:
    """The newest checkpoint; a run that was stopped before its first one starts again."""
    if list_checkpoints(run / "checkpoints"):
        return newest_checkpoint(run / "checkpoints", say)
    say(f"{run} has no checkpoint yet: starting from the beginning")
    if is_first_process():
        (run / METRICS_FILE).unlink(missing_ok=True)
    return None, {}


def make_trainer(config: TrainConfig, steps: int, run: Path, callbacks: list[Callback], done: int = 0) -> Trainer:
    """Lightning's trainer for a config; ``done`` steps were taken before."""
    jsonl = JsonlLogger(run)
    loggers: list[Logger] = [jsonl]
    if config.tensorboard:
        loggers.append(_Events(run, name=None, version="", purge_step=done + 1 if done else None))
    return Trainer(
        **_machine(config),
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=config.val_every * config.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=config.accumulate,
        gradient_clip_val=config.clip or None,
        log_every_n_steps=config.log_every,
        logger=loggers,
        callbacks=[jsonl, *callbacks],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=run,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        benchmark=True,
    )


def describe(config: TrainConfig, images: RunImages, module: TokenizerModule, trainer: Trainer) -> str:
    """One line: images, network, quantizer, machine and folder."""
    parameters = sum(p.numel() for p in module.model.parameters() if p.requires_grad)
    data = "embedded photographs" if config.data is None else config.data
    quantizer = module.model.quantizer
    codes = "no quantizer" if quantizer is None else f"{config.quantizer}, K = {quantizer.codebook_size:,}"
    device = pick_accelerator(config.accelerator)
    processes = "" if trainer.world_size == 1 else f" × {trainer.world_size}"
    layout = ", channels last" if pick_channels_last(config) else ""
    return (
        f"{data}: {len(images.train_source):,} images to train on, {len(images.val_source):,} held out, "
        f"{config.size} px · {config.network} network, {parameters:,} parameters · {codes} · "
        f"{device}{processes}, {pick_precision(config)}{layout} · {module.steps:,} steps → {module.run}"
    )


def _machine(config: TrainConfig) -> dict[str, Any]:
    """What goes to Lightning unchanged, and the precision."""
    return {
        "accelerator": config.accelerator,
        "devices": config.devices,
        "num_nodes": config.num_nodes,
        "strategy": config.strategy,
        "precision": pick_precision(config),
    }


def _callbacks(config: TrainConfig, images: RunImages, run: Path, say: Say) -> list[Callback]:
    callbacks: list[Callback] = [CodebookStart(images, config.kmeans_batches, say)]
    if config.probe_every > 0 and config.quantizer != "none":
        callbacks.append(DriftCallback(images.first_val_images(PROBES).images, config.probe_every))
    callbacks.append(SampleImages(images.first_val_images(SAMPLES).images, config.val_every, run))
    callbacks.append(LiveProgress())
    return callbacks


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave the screen to what concerns the user: Lightning's advice is about choices made here on purpose."""
    names = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            for name in names:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _Events(TensorBoardLogger):
    """TensorBoard's events alone: the config has a file of its own."""

    @rank_zero_only
    def save(self) -> None:
        self.experiment.flush()


def _silent(line: str) -> None:
    """Other processes than the first do not speak."""
