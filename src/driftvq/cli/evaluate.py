"""``driftvq evaluate``: measure a model on images."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftvq.cli.arguments import DEVICE, EMBEDDED, WHOSE, arg, find_run, number, say
from driftvq.records.metric_table import MEASURED
from driftvq.records.runs import CONFIG_FILE, EVALUATION_FILE, weights_hash

if TYPE_CHECKING:
    from driftvq.data import ImageSource
    from driftvq.metrics import Evaluation
    from driftvq.training.config import TrainConfig

EXAMPLES = """examples:
  driftvq evaluate runs/x                             on the validation images of the run
  driftvq evaluate runs/x --data photos/val           on your images
  driftvq evaluate user/name --data photos/ --split all --size 256 --limit 5000
  driftvq evaluate runs/x --metrics psnr ssim usage   without the weights that rFID, KID and LPIPS need

The result of a run is also written to its evaluation.json.
"""
ARGUMENTS = (
    WHOSE,
    arg("--data", metavar="SPEC",
        help=f"a folder, a list, shards, hf:NAME, or '{EMBEDDED}' for the photographs that come with the packages "
        "(default: the run's data, else embedded)"),
    arg("--split", metavar="NAME",
        help="train, val or all (default: val of the run's own or embedded data or where there are train and val "
        "folders, else all)"),
    number("--size", "side of the images (default: the run's, else each image's own)"),
    number("--limit", "images at most, evenly spaced (default: all)"),
    arg("--metrics", nargs="+", metavar="NAME",
        help=f"{', '.join(name for name in MEASURED if name != 'kid_std')} (default: all but lpips_vgg, which takes "
        "long)"),
    arg("--weights", type=Path, metavar="DIR", help="look here first for the weights of the metrics"),
    arg("--no-cache", action="store_true", help="neither read nor keep features of the real images"),
    number("--batch-size", "(default: 16)", default=16),
    number("--workers", "processes that read images", 0, default=0),
    *DEVICE,
    arg("--strict", action="store_true", help="an unreadable image is an error, not skipped"),
    arg("--json", action="store_true", help="print JSON instead of a table"),
    arg("--out", type=Path, metavar="FILE", help="write the JSON here, not into the run's folder"),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Measure the model and print, and keep, the result."""
    from driftvq.data import open_source
    from driftvq.files import write_text
    from driftvq.names import check_name
    from driftvq.training.settings import make_config, read_settings

    for name in args.metrics or ():
        check_name("metric", name, MEASURED)
    folder = find_run(args.model)
    config = make_config(read_settings(folder / CONFIG_FILE)) if folder and (folder / CONFIG_FILE).is_file() else None
    out = args.out or (folder / EVALUATION_FILE if folder is not None else None)
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise ValueError(f"--out must be a file in an existing folder, got {str(args.out)!r}")
    data, split = choose_images(args.data, args.split, config)
    size = args.size or (config.size if config is not None else None)
    options: dict[str, Any] = {} if config is None else {"val_share": config.val_share, "seed": config.seed}
    source = open_source(data, split, **options, **({} if size is None else {"size": size}))
    of_run = {}
    if folder is not None:  # own_images: those that the run validates on
        own = config is not None and (data, split) == choose_images(None, None, config) and size == config.size
        of_run = {"weights": weights_hash(folder), "own_images": own}
    evaluation = measure(args, source, size)
    evaluation.notes = {"model": args.model, "data": data or "embedded photographs", "split": split} | evaluation.notes
    text = json.dumps(evaluation.to_dict() | of_run, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    sys.stdout.write(text if args.json else evaluation.to_table() + "\n")
    if out is not None:
        write_text(out, text)
        say(f"wrote {out}")


def choose_images(data: str | None, split: str | None, config: "TrainConfig | None") -> tuple[str | None, str]:
    """Which images (None: embedded) and split: what the user names is measured whole, unless a part was trained on."""
    from driftvq.data.folder import split_folder
    from driftvq.data.sources import same_data

    if data is None and config is not None:
        if config.val_data is not None:
            return config.data if split == "train" else config.val_data, "all"
        return config.data, split or "val"
    if data is None or data == EMBEDDED:
        return None, split or "val"
    own = None if config is None or config.val_data is not None else config.data  # what the run has split
    path, trained_on = Path(data).expanduser(), own is not None and same_data(data, own)
    has_splits = path.is_dir() and split_folder(path, "val")[1] == "all"
    return data, split or ("val" if trained_on or has_splits else "all")


def measure(args: argparse.Namespace, source: "ImageSource", size: int | None) -> "Evaluation":
    """Run the model and the metrics over the images."""
    from driftvq.data import eval_batches
    from driftvq.metrics import evaluate
    from driftvq.metrics.evaluation import DEFAULT_CACHE
    from driftvq.models.running import find_room, load_model, metric_bytes, model_pairs
    from driftvq.progress import Progress

    model, device, _ = load_model(args.model, args.device)
    skipped: list[tuple[str, str]] = []
    options = {name: getattr(args, name) for name in ("limit", "workers", "strict", "batch_size")}
    room = find_room(model, args.workers, metric_bytes(args.metrics or ()), args.max_pixels)
    options |= {"size": size, "max_pixels": room.image, "batch_pixels": room.at_once}
    total = len(source) if args.limit is None else min(args.limit, len(source))
    with eval_batches(source, **options) as batches, Progress("evaluating", total) as progress:
        progress.add(0)
        evaluation = evaluate(
            model_pairs(model, batches, device, lambda name, reason: skipped.append((name, reason)), room),
            codebook_size=model.quantizer,
            metrics=args.metrics, weights=args.weights, cache=None if args.no_cache else DEFAULT_CACHE,
            device=device, progress=progress.add,
        )  # fmt: skip
    if skipped:
        name, reason = skipped[0]
        evaluation.notes["skipped"] = f"{len(skipped):,} unreadable images, the first: {name}: {reason}"
    return evaluation
