"""``driftvq inspect``: what is in a model, and whether its codebook is alive."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from driftvq.cli.arguments import say, whole

EXAMPLES = """examples:
  driftvq inspect runs/x                       model, codebook, training, drift, verdict
  driftvq inspect runs/x --data photos/        and how those images use the codes
  driftvq inspect user/name --json             a model on the hub, for a program to read
"""
EMBEDDED = "embedded"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq inspect``."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", metavar="MODEL", help="a run's folder, a saved model's folder, or user/name on the hub"
    )
    parser.add_argument(
        "--data",
        metavar="SPEC",
        help="measure the use of the codes on these images: a folder, a list, shards, hf:NAME, or "
        f"'{EMBEDDED}' for the photographs that come with the packages",
    )
    parser.add_argument(
        "--size", type=whole(1), metavar="N", help="side of the images in pixels (default: the run's, or 64)"
    )
    parser.add_argument("--limit", type=whole(1), default=1000, metavar="N", help="images at most (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> None:
    """Print what is known about a model."""
    from driftvq.inspection.facts import DEFAULT_SIZE, inspect_model, read_run_config
    from driftvq.inspection.text import to_text

    folder = find_run(args.model)
    size = args.size or int((read_run_config(folder) or {}).get("size") or DEFAULT_SIZE)
    model = load_model(args.model, folder)
    batches = None if args.data is None else open_batches(args.data, size, args.limit)
    if batches is not None and (model is None or model.quantizer is None):
        say(f"driftvq inspect: --data has no effect: {args.model} has no codebook")
    report = inspect_model(model, folder, batches, size)
    if args.json:
        sys.stdout.write(json.dumps({"source": str(args.model), **report}, indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(to_text(report))


def find_run(model: str) -> Path | None:
    """The folder of a run, if the model is given as one."""
    from driftvq.records.runs import CHECKPOINTS, CONFIG_FILE, METRICS_FILE

    folder = Path(model)
    known = (METRICS_FILE, CONFIG_FILE, CHECKPOINTS)
    return folder if any((folder / name).exists() for name in known) else None


def load_model(name: str, folder: Path | None) -> Any:
    """The model, or None for a run that has not saved one yet."""
    from driftvq.models import VQVAE

    if folder is not None and not any((folder / place).exists() for place in ("model/config.json", "config.json")):
        say(f"driftvq inspect: {name} has not saved a model yet; this is what its records say")
        return None
    return VQVAE.from_pretrained(name)


def open_batches(spec: str, size: int, limit: int) -> Any:
    """Images to measure on, all splits."""
    from driftvq.data import eval_batches, open_source

    source = open_source(None if spec == EMBEDDED else spec, "all")
    return eval_batches(source, size=size, batch_size=16, limit=limit)
