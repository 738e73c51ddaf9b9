"""One training run, from its config to its result; the training itself is in :mod:`driftvq.training.loop`."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.fabric import Fabric

from driftvq.models import VQVAE, ModelConfig
from driftvq.training.checkpoints import find_checkpoint
from driftvq.training.config import TrainConfig, resolve_steps
from driftvq.training.endings import launched
from driftvq.training.folder import is_first_process, new_run, own_folder, write_run_files
from driftvq.training.images import RunImages
from driftvq.training.loop import Say, TrainingLoop
from driftvq.training.machine import make_fabric, memory_layout, pick_accelerator, pick_precision, quiet
from driftvq.training.random_state import seed_all


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        run: its folder.
        model: as it is after the last step, averaged if ``weight_ema`` asks for it, in evaluation mode.
        step: optimizer steps taken.
        latest: values of the last validation, and its ``step``.
        best: those of the best one, whose model is in ``run/model``.
        skipped: images that could not be read.
    """

    run: Path
    model: VQVAE
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
    with quiet(), ExitStack() as held:
        run = Path(config.out or "") if resume else new_run(config)
        if resume:
            held.enter_context(own_folder(run))
        say = say if is_first_process() else _silent
        checkpoint, done = find_checkpoint(run, say) if resume else (None, 0)
        seed_all(config.seed)
        model = VQVAE(ModelConfig.from_dict(config.model_fields()))
        images, fabric = RunImages(config), make_fabric(config)
        steps = resolve_steps(config, len(images.train_source), fabric.world_size)
        if not resume:  # what cannot work has been refused by now, and left no folder
            held.enter_context(own_folder(run))
            new_run(config, run)
        if done < steps:
            write_run_files(run, config, steps)
            say(describe(config, images, model, fabric, steps, run))
        with launched(fabric, run):
            loop = TrainingLoop(config, run, steps, images, model, fabric, say)
            loop.run_from(checkpoint)
    best = loop.best
    return TrainResult(run, loop.evaluated.eval(), loop.step, best.latest, best.best, loop.skipped.count())


def describe(config: TrainConfig, images: RunImages, model: VQVAE, fabric: Fabric, steps: int, run: Path) -> str:
    """One line: images, network, quantizer, machine and folder."""
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    data = "embedded photographs" if config.data is None else config.data
    quantizer = model.quantizer
    codes = "no quantizer" if quantizer is None else f"{config.quantizer}, K = {quantizer.codebook_size:,}"
    device = pick_accelerator(config.accelerator)
    processes = "" if fabric.world_size == 1 else f" × {fabric.world_size}"
    layout = "" if memory_layout(config) == torch.contiguous_format else ", channels last"
    return (
        f"{data}: {len(images.train_source):,} images to train on, {len(images.val_source):,} held out, "
        f"{config.size} px · {config.network} network, {parameters:,} parameters · {codes} · "
        f"{device}{processes}, {pick_precision(config)}{layout} · {steps:,} steps → {run}"
    )


def _silent(line: str) -> None:
    """Other processes than the first do not speak."""
