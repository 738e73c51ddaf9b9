"""The folder of a comparison: begun, or found again."""

import os
import platform
import re
from dataclasses import fields
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from driftvq.experiments.plan import CellPlan, Plan, open_images
from driftvq.experiments.records import (
    CELL_FILE,
    CELLS,
    COMPARISON_FILE,
    FORMAT,
    LOG_FILE,
    ORIGINALS,
    write_json,
)
from driftvq.experiments.request import Request, differences
from driftvq.files import LOCK_FILE, read_object
from driftvq.training.config import TrainConfig

STRIP = 8
"""Images whose reconstructions are shown."""
PER_CELL = ("quantizer", "quantizer_options", "seed", "out")


def find_folder(request: Request, out: Path | None, resume: bool) -> Path:
    """The folder to work in; nothing is written.

    Raises:
        ValueError: it holds something else, or another comparison.
    """
    if out is None:
        return _dated(request.recipe)
    if out.exists() and not out.is_dir():
        raise ValueError(f"the folder {out} is a file; choose another --out")
    if not out.is_dir() or not any(path.name != LOCK_FILE for path in out.iterdir()):
        if resume:
            raise ValueError(f"{out} is no comparison to resume: it has no {COMPARISON_FILE}")
        return out
    if not (out / COMPARISON_FILE).is_file():
        raise ValueError(f"the folder {out} is not empty and holds no comparison; choose another --out")
    changes = differences(stored_request(out), request)
    if changes:
        raise ValueError(
            f"{out} holds another comparison; choose another --out, or ask for the same; "
            f"these differ: {'; '.join(changes)}"
        )
    if not resume:
        raise ValueError(f"{out} already holds this comparison; to continue it add --resume, or choose another --out")
    return out


def stored_request(folder: Path) -> Request:
    """What a comparison was asked for."""
    path = folder / COMPARISON_FILE
    if not path.is_file():
        raise ValueError(f"{folder} is no comparison to resume: it has no {COMPARISON_FILE}")
    found = read_object(path).get("request")
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not say what was asked for: it cannot be resumed")
    return Request.from_dict(found)


def begin(folder: Path, plan: Plan) -> None:
    """Write what is not there yet: the originals, every cell, and at last the comparison itself."""
    folder.mkdir(parents=True, exist_ok=True)
    write_originals(folder / ORIGINALS, plan)
    for cell in plan.cells:
        path = folder / CELLS / cell.name / CELL_FILE
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, cell_record(cell, plan))
    if not (folder / COMPARISON_FILE).exists():
        write_json(folder / COMPARISON_FILE, comparison_record(folder, plan))


def cell_record(cell: CellPlan, plan: Plan) -> dict[str, Any]:
    """The first contents of ``cell.json``; ``plan`` is what its process needs to know beside the config."""
    return {
        "format": FORMAT,
        "method": cell.method.name,
        "point": cell.point,
        "seed": cell.seed,
        "status": "waiting",
        "error": None,
        "log": LOG_FILE,
        "config": {name: value for name, value in cell.config.to_dict().items() if name != "out"},
        "values": {},
        "missing": [],
        "seconds": {},
        "plan": {
            "after": cell.after,
            "afterwards": cell.method.afterwards is not None,
            "images": plan.evaluation,
            "metrics": list(plan.scale.metrics),
            "kmeans_images": plan.scale.kmeans_images,
        },
    }


def comparison_record(folder: Path, plan: Plan) -> dict[str, Any]:
    """The contents of ``comparison.json``."""
    recipe, sweep = plan.recipe, plan.sweep
    return {
        "format": FORMAT,
        "name": plan.request.name or folder.name,
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": plan.scale.name,
        "question": recipe.question,
        "command": plan.request.command(),
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "seeds": list(plan.seeds),
        "metrics": list(plan.scale.metrics),
        "sweep": sweep and {"field": sweep.field, "values": list(sweep.values), "label": sweep.label},
        "methods": [{"name": m.name, "label": m.label, "group": m.group} for m in plan.methods],
        "environment": environment(),
        "data": {"source": plan.data, "train": plan.train, "evaluation": plan.evaluation, "size": plan.base.size},
        "config": shared_config(plan),
        "paper": _published(plan),
        "notes": _notes(plan),
        "request": plan.request.to_dict(),
    }


def shared_config(plan: Plan) -> dict[str, Any]:
    """The settings that all cells have in common."""
    configs = [cell.config.to_dict() for cell in plan.cells]
    names = [f.name for f in fields(TrainConfig) if f.name not in PER_CELL]
    return {name: configs[0][name] for name in names if all(config[name] == configs[0][name] for config in configs)}


def environment() -> dict[str, Any]:
    """Versions and machine."""
    import torch

    from driftvq.machine import git_state

    git = git_state(Path(__file__).parent)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = {
        "driftvq": metadata.version("driftvq"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "gpu": ", ".join(gpus) or None,
        "cores": cores(),
        "git": None if git is None else git["commit"] + (" with changes" if git["changed"] else ""),
    }
    return {name: value for name, value in found.items() if value is not None or name == "git"}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_originals(folder: Path, plan: Plan) -> None:
    """The images of the strips, evenly taken from those held out."""
    from driftvq.data import eval_batches
    from driftvq.data.images import write_image

    folder.mkdir(exist_ok=True)
    count = min(STRIP, plan.evaluation)
    if len(list(folder.glob("*.png"))) == count:
        return
    config = plan.base
    with eval_batches(open_images(config, "val"), size=config.size, batch_size=count, limit=count) as batches:
        images = next(iter(batches)).images
    for number, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        write_image(folder / f"{number:02d}.png", image)


def _published(plan: Plan) -> dict[str, Any] | None:
    published = plan.recipe.published
    if published is None:
        return None
    labels = {method.name: method.label for method in plan.methods}
    rows = [
        {"method": name, "label": labels[name].partition(", as printed")[0], "point": point, "values": dict(values)}
        for (name, point), values in published.values.items()
        if name in labels
    ]
    return {"source": published.source, "setting": published.setting, "rows": rows}


def _notes(plan: Plan) -> list[str]:
    notes = list(plan.recipe.notes)
    notes.append("All methods of a seed start from the same network and see the same images in the same order.")
    notes.append("Models are evaluated as they are after the last step.")
    if len(plan.seeds) > 1 and not plan.own_splits and plan.request.val_data is None:
        notes.append("The data has no validation split of its own: each seed holds out its own images.")
    if any(method.decays_per_epoch for method in plan.methods):
        config = next(cell.config for cell in plan.cells if cell.method.decays_per_epoch)
        every = config.quantizer_options["decay_every"]
        notes.append(f"NS-VQ as the paper has it narrows its kernel after each epoch, here {every} steps.")
    return notes


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _dated(recipe: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{recipe}-{stamp}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder
