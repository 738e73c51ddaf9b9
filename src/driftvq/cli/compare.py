"""``driftvq compare``: several methods on the same images."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from driftvq.cli.arguments import say, whole

if TYPE_CHECKING:
    from driftvq.experiments.design import Request
    from driftvq.experiments.plan import Plan

EXAMPLES = """examples:
  driftvq compare                                          embedded photographs
  driftvq compare --seeds 3 --jobs 2                       with the spread over seeds
  driftvq compare --methods all --data my_images/          every cure for collapse, on your own images
  driftvq compare --methods vqgan_ema ns_vq --codebook-size 64 1024 8192
  driftvq compare --data hf:korexyz/celeba-hq-256x256 --scale paper     the paper's setting, on a GPU
  driftvq compare --dry-run                                what would be done, and how long it takes here
  driftvq compare --resume runs/x                          go on after an interruption

Results are in the folder: report.html, results.json, results.csv, and one folder for each cell.
"""
FORMATS = ("markdown", "csv", "json", "latex")
FAILED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq compare``."""
    parser.epilog = EXAMPLES
    add_flags(parser)


def run(args: argparse.Namespace) -> None:
    """Compare."""
    run_recipe(args, "compare")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The arguments of every comparison; what is not given is the recipe's or the scale's."""
    from driftvq.experiments.design import DEFAULT_SCALE, SCALES

    many, one = whole(1), whole(1)
    parser.add_argument("--data", metavar="SPEC", help="a folder of images, a list file (.txt), .tar shards or hf:NAME")
    parser.add_argument("--val-data", metavar="SPEC", help="images to evaluate on (default: held out from --data)")
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help="see driftvq reproduce --list; all: every one but variants"
    )
    parser.add_argument("--seeds", type=one, metavar="N", help="seeds 0 to N-1 (default: the recipe's, or 1)")
    parser.add_argument("--scale", metavar="NAME", help=f"{', '.join(SCALES)} (default: {DEFAULT_SCALE})")
    parser.add_argument("--codebook-size", nargs="+", type=many, metavar="K", help="several: one after the other")
    parser.add_argument("--code-dim", type=one, metavar="D", help="channels of the latents")
    parser.add_argument("--batch-size", type=one, metavar="N", help="images per step")
    parser.add_argument("--size", type=one, metavar="N", help="side of the images in pixels")
    parser.add_argument("--steps", type=one, metavar="N", help="optimizer steps of each cell")
    parser.add_argument("--evaluation-images", type=one, dest="evaluation", metavar="N", help="images to evaluate on")
    parser.add_argument("--name", metavar="TEXT", help="of the comparison, for its report (default: the folder's)")
    parser.add_argument("--jobs", type=one, metavar="N", help="cells at a time (default: one per GPU, else per core)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: runs/RECIPE-DATE-TIME)")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="DIR", help="continue this comparison, or the one of --out"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the cells and estimate the time, do nothing")
    parser.add_argument(
        "--format", default="markdown", metavar="NAME", help=f"of the table: {', '.join(FORMATS)} (default: markdown)"
    )


def run_recipe(args: argparse.Namespace, recipe: str | None) -> None:
    """Run a recipe with the flags; None: the one of the folder to resume."""
    from driftvq.names import check_name, install_command

    check_name("format", args.format, FORMATS)
    try:
        from driftvq.experiments.comparison_folder import find_folder
        from driftvq.experiments.engine import share_machine
        from driftvq.experiments.plan import make_plan
    except ImportError as error:
        raise ValueError(f"comparisons need more packages ({error}): {install_command('tokenizer')}") from error
    request, out = _request(args, recipe)
    folder = find_folder(request, out, args.resume is not None)
    plan = make_plan(request)
    jobs, threads, gpus = share_machine(args.jobs, len(plan.cells))
    if args.dry_run:
        sys.stdout.write(_outlook(_left(plan, folder) if args.resume is not None else plan, jobs, threads))
        return
    _work(folder, plan, jobs, threads, gpus, args.format, args.resume is not None)


def _request(args: argparse.Namespace, recipe: str | None) -> "tuple[Request, Path | None]":
    """What is asked for: flags over what the resumed comparison was asked for."""
    from driftvq.experiments.comparison_folder import stored_request
    from driftvq.experiments.design import FLAGS, Request

    out = args.out
    if args.resume:
        if out is not None and out != Path(args.resume):
            raise ValueError(f"--resume {args.resume} continues in its own folder; got another --out {out}")
        out = Path(args.resume)
    if args.resume is not None and out is None:
        raise ValueError("--resume needs the comparison to continue: --resume DIR, or --out DIR beside it")
    given = {name: value for name in FLAGS if (value := getattr(args, name)) is not None}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if recipe is not None and (args.resume is None or recipe != "compare"):
        given["recipe"] = recipe
    base = Request() if args.resume is None or out is None else stored_request(out)
    return replace(base, **given), out


def _work(folder: Path, plan: "Plan", jobs: int, threads: int, gpus: int, form: str, resume: bool) -> None:
    from driftvq.experiments.engine import run_comparison
    from driftvq.report import load_comparison, results_table

    say(f"{len(plan.cells)} cells, {jobs} at a time with {threads} threads each → {folder}")
    try:
        report = run_comparison(folder, plan, jobs, threads, gpus, resume)
    except KeyboardInterrupt:
        say(f"stopped; finished cells are safe. To continue: driftvq compare --resume {folder}")
        raise
    comparison = load_comparison(folder)
    sys.stdout.write(results_table(comparison, form))
    say(f"report: {report}")
    failed = [cell for cell in comparison.cells if cell.status != "done"]
    if failed:
        say(f"{len(failed)} of {len(comparison.cells)} cells failed; to try them again: --resume {folder}")
        raise SystemExit(FAILED)


def _left(plan: "Plan", folder: Path) -> "Plan":
    """The plan without the cells that are finished."""
    from dataclasses import replace

    from driftvq.records.comparisons import load_comparison

    done = {cell.folder.name for cell in load_comparison(folder).cells if cell.status == "done"}
    return replace(plan, cells=tuple(cell for cell in plan.cells if cell.name not in done))


def _outlook(plan: "Plan", jobs: int, threads: int) -> str:
    """The cells with the time that they will take."""
    from driftvq.experiments.estimate import estimate_cells, measure_speed, wall_seconds
    from driftvq.progress import clock_time

    if not plan.cells:
        return "every cell is finished\n"
    say("measuring a few steps on this machine …")
    times = estimate_cells(plan, measure_speed(plan, threads))
    width = max(len(name) for name in times)
    lines = [f"{plan.recipe.title} · scale {plan.scale.name} · {plan.data}: {plan.train:,} images to train on"]
    lines += [f"{'cell':<{width}}  {'steps':>7}  {'train':>8}  {'evaluate':>8}"]
    for cell in plan.cells:
        train, evaluate = times[cell.name]
        steps = "–" if cell.after is not None else f"{cell.config.steps:,}"
        lines.append(f"{cell.name:<{width}}  {steps:>7}  {clock_time(train):>8}  {clock_time(evaluate):>8}")
    total = wall_seconds(times, jobs)
    lines.append(
        f"{len(plan.cells)} cells, {jobs} at a time with {threads} threads each, {plan.evaluation} images to "
        f"evaluate on: about {clock_time(total)} at the speed just measured"
    )
    return "\n".join(lines) + "\n"
