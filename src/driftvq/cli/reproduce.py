"""``driftvq reproduce``: a table or figure of the paper, or where codebooks collapse."""

import argparse
import sys

from driftvq.cli import compare
from driftvq.cli.arguments import arg
from driftvq.names import check_name

EXAMPLES = """examples:
  driftvq reproduce --list                                 every recipe, method and scale
  driftvq reproduce table-3 --dry-run                      its cells, and how long they take on this machine
  driftvq reproduce table-3                                on embedded photographs
  driftvq reproduce table-3 --data hf:korexyz/celeba-hq-256x256 --scale paper
  driftvq reproduce collapse-grid --data faces/            which codebooks live
"""
TABLES = {"table-2": "table-3d", "table-3": "table-64d", "table-4": "table-best"}  # the paper's numbers, the recipes
ARGUMENTS = (
    arg("recipe", nargs="?", metavar="RECIPE", help="see --list; also table-2, table-3, table-4"),
    arg("--list", action="store_true", help="print the recipes, methods and scales, and stop"),
    *compare.ARGUMENTS,
)


def run(args: argparse.Namespace) -> None:
    """Reproduce, or say what can be reproduced."""
    if args.list:
        sys.stdout.write(listing())
        return
    from driftvq.experiments.recipes import RECIPES

    if args.recipe is not None:
        check_name("recipe", args.recipe, [*TABLES, *RECIPES])
    elif args.resume is None:
        raise ValueError(f"which one? Known recipes: {', '.join([*TABLES, *RECIPES])}; --list says more")
    compare.run_recipe(args, args.recipe and TABLES.get(args.recipe, args.recipe))


def listing() -> str:
    """Recipes, methods and scales as text."""
    from driftvq.experiments.design import SCALES
    from driftvq.experiments.methods import METHODS
    from driftvq.experiments.recipes import RECIPES

    lines = ["recipes:"]
    lines += [f"  {recipe.name:<26} {recipe.title}" for recipe in RECIPES.values()]
    lines += ["", "methods:"]
    lines += [f"  {method.name:<26} {method.label} [{method.group}]" for method in METHODS.values()]
    lines += ["", "scales:"]
    for scale in SCALES.values():
        settings = {**scale.settings, **scale.overrides}
        length = f"{settings['steps']} steps" if settings.get("steps") else f"{settings['epochs']:g} epochs"
        images = "all held-out images" if scale.evaluation is None else f"{scale.evaluation} images"
        made = f"{settings['network']} network, {settings['size']} px, {length}, batches of {settings['batch_size']}"
        lines.append(f"  {scale.name:<26} {made}, evaluated on {images}")
    return "\n".join(lines) + "\n"
