"""One training run, from its config to its result: its folder and its images; the steps are in ``loop.py``."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from driftvq.data import Batches, ImageBatch, ImageSource, eval_batches, open_source, train_batches
from driftvq.data.sources import absolute, same_data
from driftvq.files import LOCK_FILE, dated_folder, locked, read_object, read_records, write_text
from driftvq.machine import environment, pick_accelerator, quiet
from driftvq.models import VQVAE, ModelConfig
from driftvq.models.vqvae import count_parameters
from driftvq.records.runs import CHECKPOINTS, CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE
from driftvq.training.checkpoints import find_checkpoint, list_checkpoints, seed_all
from driftvq.training.config import TrainConfig, course_changes, resolve_steps
from driftvq.training.fabric import LAUNCHED, is_first_process, make_fabric, memory_layout, pick_precision
from driftvq.training.loop import Probe, Say, TrainingLoop
from driftvq.training.settings import make_config, read_settings, write_settings
from driftvq.training.stopping import launched


def new_run(config: TrainConfig, chosen: Path | None = None) -> Path:
    """Choose the folder of a new run, or look again at the chosen one: it must not hold a run. Nothing is written."""
    if LAUNCHED in os.environ and not is_first_process():
        return Path(os.environ[LAUNCHED])
    if config.out is None and chosen is None and (config.num_nodes > 1 or not is_first_process()):
        raise ValueError("several machines must agree on the run folder: give it with --out")
    named = re.sub(r"[^A-Za-z0-9_]+", "-", config.quantizer)
    folder = chosen or (Path(config.out) if config.out is not None else dated_folder(f"NOW-{named}"))
    if not is_first_process():
        return folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the run folder {folder} is a file; choose another --out")
    if folder.is_dir() and any(path.name != LOCK_FILE for path in folder.iterdir()):
        hint = f"; to continue it: driftvq train --resume {folder}" if (folder / CONFIG_FILE).exists() else ""
        raise ValueError(f"the run folder {folder} is not empty; choose another --out{hint}")
    return folder


def resumed_config(folder: Path, flags: dict[str, Any], config_file: dict[str, Any]) -> TrainConfig:
    """The config of an existing run with what may change; other changes are refused by name."""
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder} is not a run to resume: it has no {CONFIG_FILE}")
    old = read_settings(folder / CONFIG_FILE)
    old |= {name: absolute(old.get(name)) for name in ("data", "val_data")}
    logged = max((record.get("step", 0) for record in read_records(folder / METRICS_FILE)), default=0)
    if logged > make_config(old).checkpoint_every and not list_checkpoints(folder / CHECKPOINTS):
        how = f"to begin anew: driftvq train --config {folder / CONFIG_FILE}"
        raise ValueError(f"the checkpoints of {folder} are gone, so it cannot go on from step {logged}; {how}")
    config = make_config(old, config_file, flags, {"out": str(folder)})
    config = replace(config, data=absolute(config.data), val_data=absolute(config.val_data))
    changes = course_changes(make_config(old).to_dict(), config.to_dict())
    if changes:
        raise ValueError(f"a resumed run keeps its settings; these differ: {'; '.join(changes)}")
    return config


def own_folder(folder: Path) -> AbstractContextManager[object]:
    """Inside, no other training works in the folder, which is made if need be; the first process sees to it for all."""
    if not is_first_process():
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    return locked(folder, "training")


def write_run_files(folder: Path, config: TrainConfig, steps: int, images: Mapping[str, int] | None = None) -> None:
    """Write the config, steps resolved, the environment, precision and how many images there are, by one process."""
    if not is_first_process():
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**config.to_dict(), "steps": steps, "epochs": None}
    settings.pop("out")  # so that the file describes a new run as well
    settings |= {name: absolute(settings[name]) for name in ("data", "val_data")}
    write_settings(folder / CONFIG_FILE, settings)
    about = {**environment(), "precision": pick_precision(config)} | ({} if images is None else {"images": images})
    write_text(folder / ENVIRONMENT_FILE, json.dumps(about, indent=2, ensure_ascii=False) + "\n")


RESTING_SEED = 2**32  # added to the seed for the batches on which a codebook settles: they have an order of their own


def open_images(config: TrainConfig, split: str) -> ImageSource:
    """The images that a run trains or validates on; beside validation images of their own, nothing is held out."""
    options: dict[str, Any] = {"seed": config.seed, "size": config.size}
    if config.val_data is None:
        return open_source(config.data, split, config.val_share, **options)
    if config.data is not None and same_data(config.data, config.val_data):
        twice = f"got {config.val_data} twice; without it a share is held out"
        raise ValueError(f"val_data must be other images than data, {twice}")
    if split == "val":
        return open_source(config.val_data, "all", **options)
    return open_source(config.data, split, 0.0, **options)


class RunImages:
    """What a run reads; each process its own share, set once :attr:`rank` and :attr:`world_size` are known.

    The training batches are endless and a pure function of the seed and of how many came before, so a resumed run asks
    for those after its checkpoint, whatever the old process had read ahead.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.rank, self.world_size = 0, 1
        self.train_source, self.val_source = open_images(config, "train"), open_images(config, "val")

    def resting_batches(self, count: int) -> Iterator[ImageBatch]:
        """So many batches of training images, the same ones each time."""
        with self.train_batches(0, self.config.seed + RESTING_SEED, 0) as batches:
            yield from islice(batches, count)

    def val_batches(self) -> Batches:
        """The same images each time; a process may have fewer batches than another, or none."""
        return eval_batches(self.val_source, limit=self.config.val_images or None, **self._common())

    def first_val_images(self, count: int) -> ImageBatch:
        """A few validation images, the same in each process and each run."""
        with eval_batches(self.val_source, size=self.config.size, batch_size=count, limit=count) as batches:
            return next(iter(batches))

    def train_batches(self, start: int, seed: int | None = None, workers: int | None = None) -> Batches:
        """From batch ``start`` on, counted from 0; seed and workers are the config's."""
        config, seed = self.config, self.config.seed if seed is None else seed
        options = self._common() | {"crop": config.crop, "flip": config.flip}
        options["workers"] = config.workers if workers is None else workers
        return train_batches(self.train_source, seed=seed, start_step=start, **options)

    def _common(self) -> dict[str, Any]:
        shared = {name: getattr(self.config, name) for name in ("size", "batch_size", "strict")}
        return shared | {"rank": self.rank, "world_size": self.world_size}


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run: Path
    """Its folder."""
    model: VQVAE
    """As it is after the last step, averaged if ``weight_ema`` asks for it, in evaluation mode."""
    step: int
    latest: dict[str, float]
    """Values of the last validation, and its ``step``."""
    best: dict[str, float]
    """Those of the best one, whose model is in ``run/model``."""
    skipped: int
    """Images that could not be read."""


def train(
    config: TrainConfig, *, resume: bool = False, say: Say = lambda line: None, probe: Probe | None = None
) -> TrainResult:
    """Train a tokenizer, or with ``resume`` go on in ``config.out`` from the newest checkpoint that can be read.

    ``say`` is told, in the first process, what a user should know; ``probe`` looks at the model after certain steps.

    Raises:
        InterruptedTrainingError: after Ctrl-C or SIGTERM; a checkpoint is saved.
        NonFiniteError: the loss is not a number any more.
    """
    loggers = ("lightning", "lightning.fabric", "lightning.pytorch", "lightning.pytorch.utilities.rank_zero")
    with quiet(*loggers, module="lightning"), ExitStack() as held:  # its advice is about choices made on purpose
        run = Path(config.out or "") if resume else new_run(config)
        if resume:
            held.enter_context(own_folder(run))
        say = say if is_first_process() else lambda line: None
        checkpoint, done = find_checkpoint(run, say) if resume else (None, 0)
        seed_all(config.seed)
        model = VQVAE(ModelConfig.from_dict(config.model_fields()))
        images, fabric = RunImages(config), make_fabric(config)
        steps = resolve_steps(config, len(images.train_source), fabric.world_size)
        moving = steps - round(config.settle * steps)
        if config.warm_up > moving:
            rest = " before the rest" if moving < steps else ""
            raise ValueError(f"warm_up must be at most the {moving} steps{rest}, got {config.warm_up}")
        if not resume:  # what cannot work has been refused by now, and left no folder
            held.enter_context(own_folder(run))
            new_run(config, run)
        counts = {"train": len(images.train_source), "val": len(images.val_source)}
        before = read_object(run / ENVIRONMENT_FILE).get("images") if (run / ENVIRONMENT_FILE).is_file() else None
        if before not in (None, counts):
            now = f"{before} before, {counts} now; the run goes on with those that are there"
            say(f"the images have changed since: {now}")
        if done < steps:
            write_run_files(run, config, steps, counts)
            say(describe(config, images, model, fabric, steps, run))
        with launched(fabric, run):
            loop = TrainingLoop(config, run, steps, images, model, fabric, say, probe)
            loop.run_from(checkpoint)
    best = loop.best
    return TrainResult(run, loop.evaluated.eval(), loop.step, best.latest, best.best, loop.skipped.count())


def describe(config: TrainConfig, images: RunImages, model: VQVAE, fabric: Fabric, steps: int, run: Path) -> str:
    """One line: images, network, quantizer, machine and folder."""
    codes = "no quantizer" if model.quantizer is None else f"{config.quantizer}, K = {model.quantizer.codebook_size:,}"
    device = pick_accelerator(config.accelerator)
    processes = "" if fabric.world_size == 1 else f" × {fabric.world_size}"
    layout = "" if memory_layout(config) == torch.contiguous_format else ", channels last"
    others = "held out" if config.val_data is None else f"of {config.val_data} to validate on"
    return (
        f"{config.data or 'embedded photographs'}: {len(images.train_source):,} images to train on, "
        f"{len(images.val_source):,} {others}, {config.size} px · {config.network} network, "
        f"{count_parameters(model)['total']:,} parameters · {codes} · {device}{processes}, {pick_precision(config)}"
        f"{layout} · {steps:,} steps → {run}"
    )
