"""``driftvq compare``: several methods on the same images."""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from driftvq.cli.arguments import arg, folder_to_resume, number, say
from driftvq.experiments.design import DEFAULT_SCALE, FLAGS, SCALES, Request
from driftvq.names import check_name
from driftvq.training.config import SOURCES

EXAMPLES = """examples:
  driftvq compare                                          embedded photographs
  driftvq compare --seeds 3 --jobs 2                       with the spread over seeds
  driftvq compare --seeds 2 --first-seed 3                 two more
  driftvq compare --methods all --data my_images/          every cure for collapse, on your own images
  driftvq compare --methods vqgan_ema ns_vq --codebook-size 64 1024 8192
  driftvq compare --data hf:korexyz/celeba-hq-256x256 --scale paper     the paper's setting, on a GPU
  driftvq compare --dry-run                                what would be done, and how long it takes here
  driftvq compare --resume runs/x                          go on after an interruption

Results are in the folder: report.html, results.json, results.csv, and one folder for each cell.
"""
FORMATS = ("markdown", "csv", "json", "latex")
FAILED = 1
ARGUMENTS = (  # of every comparison; what is not given is the recipe's or the scale's
    arg("--data", metavar="SPEC", help=SOURCES),
    arg("--val-data", metavar="SPEC", help="images to evaluate on (default: held out from --data)"),
    arg("--methods", nargs="+", metavar="NAME", help="see driftvq reproduce --list; all: every one but variants"),
    arg("--conditions", nargs="+", metavar="NAME", help="some of those that a recipe varies, such as 'K 64, D 3'"),
    number("--seeds", "how many seeds, from the first one on (default: the recipe's, or 1)"),
    number("--first-seed", "so that more seeds can be run later, or elsewhere (default: 0)", least=0),
    arg("--scale", metavar="NAME", help=f"{', '.join(SCALES)} (default: {DEFAULT_SCALE})"),
    number("--codebook-size", "several: one after the other", nargs="+", metavar="K"),
    number("--code-dim", "channels of the latents", metavar="D"),
    number("--batch-size", "images per step"),
    number("--size", "side of the images in pixels"),
    number("--steps", "optimizer steps of each cell"),
    number("--evaluation-images", "images to evaluate on", dest="evaluation"),
    arg("--name", metavar="TEXT", help="of the comparison, for its report (default: the folder's)"),
    number("--jobs", "cells at a time (default: one per GPU, else per core)"),
    arg("--out", type=Path, metavar="DIR", help="folder (default: runs/RECIPE-DATE-TIME)"),
    arg("--resume", nargs="?", const="", metavar="DIR", help="continue this comparison, or the one of --out"),
    arg("--dry-run", action="store_true", help="list the cells and estimate the time, do nothing"),
    arg("--format", default="markdown", metavar="NAME", help=f"of the table: {', '.join(FORMATS)} (default: markdown)"),
)


def run_recipe(args: argparse.Namespace, recipe: str | None) -> None:
    """Run a recipe with the flags; None: the one of the folder to resume."""
    check_name("format", args.format, FORMATS)

    from driftvq.experiments.comparison_folder import find_folder
    from driftvq.experiments.engine import run_comparison, share_machine
    from driftvq.experiments.estimate import outlook
    from driftvq.experiments.plan import make_plan
    from driftvq.report import load_comparison, results_table

    request, out = _request(args, recipe)
    resume = args.resume is not None
    folder = find_folder(request, out, resume)
    plan = make_plan(request)
    jobs, threads, gpus = share_machine(args.jobs, len(plan.cells))
    if args.dry_run:
        done = {cell.folder.name for cell in load_comparison(folder).cells if cell.status == "done"} if resume else ()
        left = replace(plan, cells=tuple(cell for cell in plan.cells if cell.name not in done))
        if left.cells:
            say("measuring a few steps on this machine …")
        sys.stdout.write(outlook(left, jobs, threads))
        return
    say(f"{len(plan.cells)} cells, {jobs} at a time with {threads} threads each → {folder}")
    try:
        report = run_comparison(folder, plan, jobs, threads, gpus, resume)
    except KeyboardInterrupt:
        say(f"stopped; finished cells are safe. To continue: driftvq compare --resume {folder}")
        raise
    comparison = load_comparison(folder)
    sys.stdout.write(results_table(comparison, args.format))
    say(f"report: {report}")
    failed = [cell for cell in comparison.cells if cell.status != "done"]
    if failed:
        say(f"{len(failed)} of {len(comparison.cells)} cells failed; to try them again: --resume {folder}")
        raise SystemExit(FAILED)


def _request(args: argparse.Namespace, recipe: str | None) -> tuple[Request, Path | None]:
    """What is asked for, and the folder: flags over what the resumed comparison was asked for."""
    from driftvq.experiments.comparison_folder import stored_request

    out = args.out if args.resume is None else folder_to_resume(args.resume, args.out, "comparison", "DIR")
    given = {name: value for name in FLAGS if (value := getattr(args, name)) is not None}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if recipe is not None and (args.resume is None or recipe != "compare"):
        given["recipe"] = recipe
    return replace(Request() if args.resume is None else stored_request(out), **given), out


run = partial(run_recipe, recipe="compare")
