"""The folder of a run: a name of its own, what was asked for, and with which versions."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from driftvq.files import write_text
from driftvq.lock import LOCK_FILE, locked
from driftvq.records.runs import CONFIG_FILE, ENVIRONMENT_FILE
from driftvq.training.config import TrainConfig, course_changes
from driftvq.training.settings import make_config, read_settings, write_settings

LAUNCHED = "DRIFTVQ_RUN"
"""Tells processes that Lightning starts for the other devices which folder the first one chose."""

PACKAGES = ("driftvq", "torch", "lightning", "torchmetrics", "numpy", "pillow", "safetensors", "webdataset", "datasets")


def is_first_process() -> bool:
    """Whether this is the process that makes folders and speaks; before Lightning can say."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"))
    return all(rank in (None, "0") for rank in ranks)


def new_run(config: TrainConfig, chosen: Path | None = None) -> Path:
    """Choose the folder of a new run, or look again at the chosen one: it must not hold a run. Nothing is written."""
    if LAUNCHED in os.environ and not is_first_process():
        return Path(os.environ[LAUNCHED])
    if config.out is None and chosen is None and (config.num_nodes > 1 or not is_first_process()):
        raise ValueError("several machines must agree on the run folder: give it with --out")
    folder = chosen or (Path(config.out) if config.out is not None else _dated(config.quantizer))
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
    config = make_config(old, config_file, flags, {"out": str(folder)})
    changes = course_changes(make_config(old).to_dict(), config.to_dict())
    if changes:
        raise ValueError(f"a resumed run keeps its settings; these differ: {'; '.join(changes)}")
    return config


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Inside, no other training works in the folder, which is made if need be; the first process sees to it for all."""
    if not is_first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "training"):
        yield


def write_run_files(folder: Path, config: TrainConfig, steps: int) -> None:
    """Write the config, steps resolved, and the environment; the first process does it for all."""
    if not is_first_process():
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**config.to_dict(), "steps": steps, "epochs": None}
    settings.pop("out")  # so that the file describes a new run as well
    write_settings(folder / CONFIG_FILE, settings)
    write_text(folder / ENVIRONMENT_FILE, json.dumps(environment(), indent=2, ensure_ascii=False) + "\n")


def environment() -> dict[str, Any]:
    """Versions, the git commit of the code, and the command."""
    import torch

    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "git": git_state(Path(__file__).parent),
    }


def git_state(folder: Path, run: Callable[..., Any] = subprocess.run) -> dict[str, Any] | None:
    """The commit that a folder belongs to and whether tracked files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return str(run(command, capture_output=True, text=True, check=True, timeout=10).stdout).strip()

    try:
        if not git("ls-files", "--", "."):  # merely inside of another repository
            return None
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _dated(quantizer: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{re.sub(r'[^A-Za-z0-9_]+', '-', quantizer)}"
    number = 2
    folder = base
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder
