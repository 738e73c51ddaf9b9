"""Checkpoint files, written whole or not at all and read without executing anything; and random generators' states."""

import pickle
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from driftvq.files import TEMPORARY_SUFFIX, replacing
from driftvq.records.runs import CHECKPOINTS

NAME = re.compile(r"step-(\d{8,})\.ckpt")
KEPT = 2  # the newest one, and the one before it in case the newest cannot be read


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}.ckpt"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest step first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def prune_checkpoints(folder: Path) -> None:
    """Remove all but the newest checkpoints, and what an interrupted write left."""
    for path in (*list_checkpoints(folder)[KEPT:], *folder.glob(f".step-*{TEMPORARY_SUFFIX}")):
        path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The contents of a checkpoint: tensors and plain values alone; anything else in it is refused, not executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        contents = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"checkpoint {path} is truncated or not a checkpoint: {error}") from error
    except pickle.UnpicklingError as error:
        found = "more than tensors and plain values, and is refused: it could run code"
        raise ValueError(f"checkpoint {path} holds {found}") from error
    except Exception as error:  # of what is damaged, zipfile and torch raise almost anything
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(f"checkpoint {path} is damaged: {_first_line(error)}") from error
    if damaged is not None:
        raise ValueError(f"checkpoint {path} is damaged: the checksum of {damaged} is wrong")
    if not isinstance(contents, dict) or not {"model", "step"} <= contents.keys():
        raise ValueError(f"{path} is not a checkpoint of a training run")
    return contents


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint that can be read, and its contents; newer ones that cannot are warned of."""
    paths = list_checkpoints(folder)
    if not paths:
        raise ValueError(f"no checkpoint in {folder}: nothing to resume from")
    for path in paths:
        try:
            return path, read_checkpoint(path)
        except (ValueError, OSError) as error:
            reason = str(error)
            warn(f"warning: {reason}; trying the one before it")
    raise ValueError(f"none of the {len(paths)} checkpoints in {folder} can be read; the last reason: {reason}")


def find_checkpoint(run: Path, say: Callable[[str], None]) -> tuple[Path | None, int]:
    """The checkpoint that a run goes on from and its step; a run that was stopped before its first one starts again."""
    if not list_checkpoints(run / CHECKPOINTS):
        say(f"{run} has no checkpoint yet: starting from the beginning")
        return None, 0
    path, contents = newest_checkpoint(run / CHECKPOINTS, say)
    return path, contents["step"]


def save_checkpoint(fabric: Fabric, run: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint of a run, by all processes together; it appears when all of it is on the disk.

    ``state`` holds modules and optimizers, which ``fabric`` replaces by their states, tensors and plain values.
    """
    path = checkpoint_path(run / CHECKPOINTS, step)
    if fabric.global_rank > 0:
        fabric.save(path, state)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as temporary:
                fabric.save(temporary, state)
        except OSError as error:
            reason = f"{_reason(error)}; checkpoints written before are intact"
            raise OSError(f"cannot write checkpoint {path}: {reason}") from error
        prune_checkpoints(path.parent)
    fabric.barrier()  # nobody goes on, or ends, before the checkpoint has its name


class PlainCheckpointIO(CheckpointIO):
    """Lightning's way to files, without its copies of everything in memory."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        try:
            with Path(path).open("wb") as file:
                torch.save(checkpoint, file)  # to a file of Python's, whose errors say what the system said
        except RuntimeError as error:
            raise OSError(_reason(error)) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    """What the system said; torch wraps it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators."""
    name, keys, position, has_gauss, cached_gaussian = np.random.get_state(legacy=True)  # noqa: NPY002 - the state
    return {
        "python": random.getstate(),
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached_gaussian],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Continue where :func:`random_state` was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002 - the state
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int) -> None:
    """Start all generators from one number."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what a library may draw from
    torch.manual_seed(seed)
