"""The ``driftvq`` command.

A subcommand is one function that adds its arguments and one that runs; both are named in :data:`COMMANDS`. Nothing
heavy is imported before a subcommand runs, so ``driftvq --help`` answers at once.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

EXAMPLES = """examples:
  driftvq toys                                  all demos, the paper's three methods, figures in ./toys
  driftvq toys --demo translation --method vanilla ns_vq
  driftvq toys --table --seeds 5                usage and distortion of every method as Markdown
  driftvq toys --play playground.html           a page to play with in the browser
"""


class Command(NamedTuple):
    """A subcommand: one line of help, its arguments, and what it does."""

    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def configure_toys(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq toys``."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--demo", nargs="+", metavar="NAME", help="translation, expansion, shrinking, split (default: all)"
    )
    parser.add_argument(
        "--method",
        nargs="+",
        metavar="NAME",
        help="vanilla, ns_vq_toy, trans_vq_toy (default: these), or any quantizer of the library with its defaults, "
        "e.g. ns_vq, trans_vq, ema_vq, sim_vq",
    )
    parser.add_argument("--seed", type=_whole(0), default=0, metavar="N", help="of the figures (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("toys"), metavar="DIR", help="for figures (default: toys)")
    parser.add_argument("--table", action="store_true", help="print the table instead of drawing")
    parser.add_argument("--seeds", type=_whole(1), default=5, metavar="N", help="seeds of the table (default: 5)")
    parser.add_argument("--play", type=Path, metavar="FILE", help="write the playground, one HTML file, and stop")


def run_toys(args: argparse.Namespace) -> None:
    """Draw the toy demos, print their table or write the playground."""
    from driftvq.experiments.toys.clouds import DEMOS
    from driftvq.experiments.toys.names import check_name

    demos = [check_name("demo", demo, DEMOS) for demo in args.demo or DEMOS]
    if args.play is not None:
        from driftvq.experiments.toys.playground import write_playground

        write_playground(args.play)
        say(f"wrote {args.play}")
        return
    from driftvq.experiments.toys.rules import METHODS, PAPER_METHODS

    methods = [check_name("method", method, METHODS) for method in args.method or PAPER_METHODS]
    if args.table:
        from driftvq.experiments.toys.run import format_table, toy_table

        sys.stdout.write(format_table(toy_table(args.seeds, methods, demos, say)) + "\n")
        return
    try:
        from driftvq.experiments.toys.gallery import draw_gallery
    except ImportError as error:
        raise ValueError(f"figures need the extra packages of driftvq[toys]: {error}") from error
    draw_gallery(demos, methods, args.seed, args.out, say)


COMMANDS = {
    "toys": Command("why codes die and what keeps them alive: the paper's toy demos", configure_toys, run_toys),
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="driftvq",
        description="Vector quantization that survives a moving encoder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; a wrong value is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        say(f"driftvq {args.command}: error: {error}")
        return 2
    return 0


def say(line: str) -> None:
    """Progress and errors go to stderr, results to stdout."""
    sys.stderr.write(line + "\n")


def _whole(least: int) -> Callable[[str], int]:
    """Parse a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


if __name__ == "__main__":
    sys.exit(main())
