"""``driftvq toys``: the paper's toy demos."""

import argparse
import sys
from pathlib import Path

from driftvq.cli.arguments import arg, number, say

EXAMPLES = """examples:
  driftvq toys                                  all demos and methods, figures in ./toys
  driftvq toys --demo translation --method vanilla ns_vq
  driftvq toys --table --seeds 5                usage and distortion of every method as Markdown
  driftvq toys --play playground.html           a page to play with in the browser
"""
ARGUMENTS = (
    arg("--demo", nargs="+", metavar="NAME", help="translation, expansion, shrinking, split (default: all)"),
    arg("--method", nargs="+", metavar="NAME",
        help="vanilla, ns_vq, ns_vq_toy, trans_vq, trans_vq_toy (default: these; _toy: the paper's rule), or any "
        "other quantizer of the library with its defaults, e.g. ema_vq, sim_vq"),
    number("--seed", "of the figures (default: 0)", 0, default=0),
    arg("--out", type=Path, default=Path("toys"), metavar="DIR", help="for figures (default: toys)"),
    arg("--table", action="store_true", help="print the table instead of drawing"),
    number("--seeds", "seeds of the table (default: 5)", default=5),
    arg("--play", type=Path, metavar="FILE", help="write the playground, one HTML file, and stop"),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Draw the toy demos, print their table or write the playground."""
    from driftvq.names import check_name
    from driftvq.toys.clouds import DEMOS

    demos = [check_name("demo", demo, DEMOS) for demo in args.demo or DEMOS]
    if args.play is not None:
        from driftvq.toys.playground import write_playground

        write_playground(args.play)
        say(f"wrote {args.play}")
        return
    from driftvq.toys.rules import METHODS, SHOWN_METHODS

    methods = [check_name("method", method, METHODS) for method in args.method or SHOWN_METHODS]
    if args.table:
        from driftvq.toys.trajectories import format_table, toy_table

        sys.stdout.write(format_table(toy_table(args.seeds, methods, demos, say)) + "\n")
    else:
        from driftvq.toys.figures import draw_gallery

        draw_gallery(demos, methods, args.seed, args.out, say)
