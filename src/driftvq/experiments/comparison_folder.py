"""The folder of a comparison: begun, or found again."""

from datetime import datetime
from pathlib import Path
from typing import Any

from driftvq.data.images import write_image
from driftvq.experiments.design import Request
from driftvq.experiments.measuring import batches_of
from driftvq.experiments.plan import CellPlan, Plan
from driftvq.files import LOCK_FILE, dated_folder
from driftvq.machine import environment
from driftvq.records import comparisons as records
from driftvq.records.codec import decode, encode, read_record, write_record
from driftvq.records.comparisons import CELL_FILE, CELLS, COMPARISON_FILE, ORIGINALS, Comparison

STRIP = 8  # images whose reconstructions are shown
PER_CELL = ("quantizer", "quantizer_options", "seed", "out")


def find_folder(request: Request, out: Path | None, resume: bool) -> Path:
    """The folder to work in; a ValueError if it holds something else, or another comparison. Nothing is written."""
    if out is None:
        return dated_folder(f"{request.recipe}-NOW")
    if out.exists() and not out.is_dir():
        raise ValueError(f"the folder {out} is a file; choose another --out")
    if not out.is_dir() or not any(path.name != LOCK_FILE for path in out.iterdir()):
        if resume:
            raise ValueError(f"{out} is no comparison to resume: it has no {COMPARISON_FILE}")
        return out
    if not (out / COMPARISON_FILE).is_file():
        raise ValueError(f"the folder {out} is not empty and holds no comparison; choose another --out")
    old, new = vars(stored_request(out)), vars(request)
    changes = [f"{name}: {old[name]!r} → {new[name]!r}" for name in new if old[name] != new[name]]
    if changes:
        differ = f"choose another --out, or ask for the same; these differ: {'; '.join(changes)}"
        raise ValueError(f"{out} holds another comparison; {differ}")
    if not resume:
        raise ValueError(f"{out} already holds this comparison; to continue it add --resume, or choose another --out")
    return out


def stored_request(folder: Path) -> Request:
    """What a comparison was asked for."""
    path = folder / COMPARISON_FILE
    if not path.is_file():
        raise ValueError(f"{folder} is no comparison to resume: it has no {COMPARISON_FILE}")
    found = read_record(Comparison, path, folder=folder).request
    if not found:
        raise ValueError(f"{path} does not say what was asked for: it cannot be resumed")
    request: Request = decode(Request, found, f"{path}: 'request'")
    return request


def begin(folder: Path, plan: Plan) -> None:
    """Write what is not there yet: the originals, every cell, and at last the comparison itself."""
    folder.mkdir(parents=True, exist_ok=True)
    write_originals(folder / ORIGINALS, plan)
    for cell in plan.cells:
        place = folder / CELLS / cell.name
        if not (place / CELL_FILE).exists():
            place.mkdir(parents=True, exist_ok=True)
            records.write_cell(cell_record(place, cell, plan))
    if not (folder / COMPARISON_FILE).exists():
        write_record(folder / COMPARISON_FILE, comparison_record(folder, plan))


def cell_record(folder: Path, cell: CellPlan, plan: Plan) -> records.Cell:
    """The first contents of ``cell.json``."""
    steps = (step + cell.config.warm_up for step in plan.recipe.probes)
    probes = tuple(step for step in steps if step < (cell.config.steps or 0))
    afterwards = cell.method.afterwards is not None
    task = records.Task(plan.evaluation, plan.metrics, cell.after, afterwards, plan.scale.kmeans_images, probes)
    config = {name: value for name, value in cell.config.to_dict().items() if name != "out"}
    return records.Cell(folder, cell.method.name, cell.point, cell.seed, "waiting", config=config, task=task)


def comparison_record(folder: Path, plan: Plan) -> Comparison:
    """The contents of ``comparison.json``."""
    recipe, configs = plan.recipe, [cell.config.to_dict() for cell in plan.cells]
    shared = {name for name in configs[0] if all(config[name] == configs[0][name] for config in configs)}
    methods, points = list(plan.methods), [None, *(plan.sweep.values if plan.sweep else ())]
    order = sorted(plan.cells, key=lambda cell: (methods.index(cell.method), points.index(cell.point), cell.seed))
    return Comparison(
        folder=folder, name=plan.request.name or folder.name, recipe=recipe.name, title=recipe.title,
        scale=plan.scale.name, question=recipe.question, command=plan.request.command(),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        seeds=plan.seeds, metrics=plan.metrics, sweep=plan.sweep,
        methods=tuple(records.Method(method.name, method.label, method.group) for method in methods),
        places=tuple(records.Place(cell.method.name, cell.point, cell.seed) for cell in order),
        environment=_environment(),
        data={"source": plan.data, "train": plan.train, "evaluation": plan.evaluation, "size": plan.base.size},
        config={name: value for name, value in configs[0].items() if name in shared and name not in PER_CELL},
        paper=_published(plan), notes=tuple(_notes(plan)), request=encode(plan.request),
    )  # fmt: skip


def _environment() -> dict[str, Any]:
    """What of the environment a reader of the results asks for, on one level."""
    found = environment()
    git, facts = found["git"], {name: found["packages"].get(name) for name in ("driftvq", "torch")}
    facts |= {name: found[name] for name in ("python", "platform", "cpu")}
    facts |= {"gpu": ", ".join(found["devices"]) or None, "cores": found["cores"]}
    commit = None if git is None else git["commit"] + (" with changes" if git["changed"] else "")
    return {name: value for name, value in facts.items() if value is not None} | {"git": commit}


def write_originals(folder: Path, plan: Plan) -> None:
    """The images of the strips, evenly taken from those held out."""
    folder.mkdir(exist_ok=True)
    count = min(STRIP, plan.evaluation)
    if len(list(folder.glob("*.png"))) == count:
        return
    with batches_of(plan.base, "val", count, count) as batches:
        images = next(iter(batches)).images
    for number, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        write_image(folder / f"{number:02d}.png", image)


def _published(plan: Plan) -> records.Paper | None:
    published, labels = plan.recipe.published, {m.name: m.label.partition(", as printed")[0] for m in plan.methods}
    if published is None:
        return None
    given = [(name, point, dict(values)) for (name, point), values in published.values.items() if name in labels]
    rows = tuple(records.PaperRow(name, labels[name], point, values) for name, point, values in given)
    return records.Paper(published.source, published.setting, rows)


def _notes(plan: Plan) -> list[str]:
    notes = [
        *plan.recipe.notes,
        "All methods of a seed start from the same network and see the same images in the same order.",
        "Models are evaluated as they are after the last step.",
    ]
    if len(plan.seeds) > 1 and not plan.own_splits and plan.request.val_data is None:
        notes.append("The data has no validation split of its own: each seed holds out its own images.")
    if any(cell.config.warm_up for cell in plan.cells):
        notes.append("A warm-up comes on top of the steps, which are counted from its end.")
    options = [cell.config.quantizer_options for cell in plan.cells]
    epochs = sorted({each["decay_every"] for each in options if "decay_every" in each})
    if epochs:
        every = ", ".join(map(str, epochs))
        notes.append(f"NS-VQ as the paper has it narrows its kernel after each epoch, here {every} steps.")
    return notes
