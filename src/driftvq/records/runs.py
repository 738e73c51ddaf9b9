"""The files of a run, its metrics, one JSON object per line and log event, and a run as a comparison of one method."""

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftvq.files import read_object, read_records, write_text
from driftvq.names import needed, shortened_text
from driftvq.records.codec import encode
from driftvq.records.comparisons import COMPARISON_FILE, Cell, Comparison, Method, Place, load_comparison

CONFIG_FILE, ENVIRONMENT_FILE = "config.yaml", "environment.json"
METRICS_FILE, SKIPPED_FILE, EVALUATION_FILE = "metrics.jsonl", "skipped.txt", "evaluation.json"
CHECKPOINTS, MODEL, SAMPLES = "checkpoints", "model", "samples"  # folders
WEIGHTS_FILE = "model.safetensors"  # in ``model``
MAX_BYTES, MAX_DEPTH = 1 << 20, 20  # of a YAML file, and of lists and mappings in each other
RUN = "train"  # the recipe of a comparison that is a single run of ``driftvq train``


def read_yaml(path: Path) -> dict[str, Any]:
    """What a YAML file of ``key: value`` lines says; a ValueError that names it, if something else is in it."""
    if not path.is_file():
        raise ValueError(f"no such config file: {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; allowed: at most {MAX_BYTES:,}")
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML: {shortened_text(str(error))}") from error
    if not isinstance(found, dict | None):
        raise ValueError(f"{path} must hold `key: value` lines, got a {type(found).__name__}")
    return {str(name): value for name, value in (found or {}).items()}


def parse_yaml(text: str) -> Any:
    """What YAML says; a ValueError, if it is not valid or has aliases or lists in lists without end.

    With aliases a few lines can stand for any number of values; the lists take PyYAML the square of their number.
    """
    yaml, depth = pyyaml(), 0
    try:
        for event in yaml.parse(text):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                allowed = f"{MAX_DEPTH} lists in lists, and each value written out, without aliases (*)"
                raise ValueError(f"allowed: {allowed}")
        return yaml.safe_load(text)
    # Beside its own errors, what PyYAML's tags raise where their text is none of theirs.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def pyyaml() -> Any:
    """PyYAML, which only runs need."""
    return needed("yaml", "settings need PyYAML")


def append_record(path: Path, step: int, values: Mapping[str, float]) -> None:
    """Add one line, in one write; a value that is not a finite number becomes null."""
    plain = {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(encode({"step": step, **plain}), allow_nan=False) + "\n")


def drop_records_after(path: Path, step: int) -> None:
    """Forget what was logged after a step, and half-written lines, so that a resumed run can log it again."""
    if not path.exists():
        return
    write_text(path, "".join(f"{json.dumps(line)}\n" for line in read_records(path) if line["step"] <= step))


def load_results(folder: str | os.PathLike[str]) -> Comparison:
    """A comparison, or a run of ``driftvq train`` as a comparison of one method; raises as :func:`load_comparison`."""
    folder = Path(folder)
    is_run = (folder / CONFIG_FILE).is_file() and not (folder / COMPARISON_FILE).exists()
    return _load_run(folder) if is_run else load_comparison(folder)


def _load_run(folder: Path) -> Comparison:
    config: dict[str, Any] = encode(read_yaml(folder / CONFIG_FILE))
    about = read_object(folder / ENVIRONMENT_FILE) if (folder / ENVIRONMENT_FILE).is_file() else {}
    name, seed = str(config.get("quantizer")), int(config.get("seed") or 0)
    found, notes = _own_evaluation(folder)
    cell = _run_cell(folder, name, seed, config, found)
    versions, command = about.get("packages") or {}, about.get("command") or []
    environment = {key: versions.get(key) for key in ("driftvq", "torch")}
    environment |= {key: about.get(key) for key in ("python", "platform", "threads")}
    return Comparison(
        folder=folder, name=folder.resolve().name, title=f"Training run {folder.resolve().name}",
        recipe=RUN, scale="", question="", sweep=None, seeds=(seed,), config=config, notes=notes, cells=(cell,),
        command=shlex.join(["driftvq", *map(str, command[1:])]) if command else "",
        created=str(about.get("date") or ""),
        metrics=("psnr", *(key for key in cell.values if key not in ("psnr", "selected"))),
        methods=(Method(name, name, "ours"),), places=(Place(name, None, seed),),
        environment={key: value for key, value in environment.items() if value is not None},
        data={"source": config.get("data") or "embedded photographs", "size": config.get("size")},
    )  # fmt: skip


def weights_hash(run: Path) -> str | None:
    """The sha256 of the weights of a run's model as they are now; None if there are none."""
    path = run / MODEL / WEIGHTS_FILE
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_evaluation(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What ``driftvq evaluate`` found with the run's present model on its validation images, or why it is left out."""
    if not (folder / EVALUATION_FILE).is_file():
        return {}, ()
    found = read_object(folder / EVALUATION_FILE)
    about = found.get("notes")
    data, split = (about.get("data"), about.get("split")) if isinstance(about, dict) else (None, None)
    if found.get("own_images") is not True:
        why = "not known to be the run's validation images"
    elif found.get("weights") != weights_hash(folder):
        why = "measured with a model that the run has since replaced"
    else:
        return found, ()
    images = f"{found.get('n')} images of {data or 'unnamed data'}" + (f" ({split})" if split else "")
    return {}, (f"The evaluation of {images} is left out: {why}.",)


def _run_cell(folder: Path, name: str, seed: int, config: dict[str, Any], found: dict[str, Any]) -> Cell:
    """The latest validation; the codes in use as training counts them; what the evaluation ``found``, if anything."""
    records = read_records(folder / METRICS_FILE)
    last = {key: value for record in records for key, value in record.items() if isinstance(value, int | float)}
    values = {key.removeprefix("val/"): float(value) for key, value in last.items() if key.startswith("val/")}
    values.pop("perplexity", None)  # of the validation images, while usage is that of training
    if "usage" in values:
        values["selected"] = values.pop("usage")
    for key in ("train/usage", "quantizer/relocated", "quantizer/drift_followed"):
        if key in last:
            values[key.partition("/")[2]] = float(last[key])
    measured = {key: value for key, value in (found.get("values") or {}).items() if isinstance(value, int | float)}
    values |= {key: float(value) for key, value in measured.items() if key not in ("usage", "perplexity")}
    steps = int(last.get("step", 0))
    return Cell(
        folder, name, None, seed, "done", config=config, values=values, n=found.get("n"), steps=steps,
        usage_over=f"the last {min(100, steps)} steps of training" if "usage" in values else None,
        codebook_size=None if name == "none" else config.get("codebook_size"), code_dim=config.get("code_dim"),
    )  # fmt: skip
