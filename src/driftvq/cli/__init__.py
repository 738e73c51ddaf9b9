"""The ``driftvq`` command.

A subcommand is a module of this package with ``EXAMPLES``, ``ARGUMENTS`` and ``run(args)``.
Nothing heavy is imported before a subcommand runs, so ``driftvq --help`` answers at once.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from driftvq import __version__
from driftvq.cli.arguments import Parser, say
from driftvq.names import check_name, install_command

COMMANDS = {  # every subcommand and what it is for; the module of the same name does it
    "train": "train a tokenizer on your images, or on embedded photographs",
    "evaluate": "measure a model: rFID, KID, LPIPS, SSIM, PSNR, usage",
    "encode": "turn images into tokens",
    "decode": "turn tokens into images",
    "reconstruct": "see images as a model gives them back",
    "inspect": "what is in this model, and whether its codebook is alive",
    "export": "write a model for other runtimes: ONNX, torch.export",
    "push": "share a model on the Hugging Face hub",
    "report": "results of comparisons on disk, as one page or one table",
    "compare": "train several methods on the same images, and see which one is best",
    "reproduce": "a table or figure of the paper by one command",
    "toys": "why codes die and what keeps them alive: the paper's toy demos",
}

EXAMPLES = """examples:
  driftvq train                                       a first result on embedded photographs, in minutes
  driftvq train --data photos/ --quantizer trans_vq --codebook-size 1024
  driftvq evaluate runs/x --data photos/val
  driftvq encode runs/x photos/ -o tokens/
  driftvq compare                                     the paper's methods and their peers; --dry-run: how long
  driftvq toys                                        see codes die, and what keeps them alive

Each command has its own --help.
"""


def make_parser(commands: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command line, with the arguments of the given commands."""
    parser = Parser(prog="driftvq", description="Vector quantization that survives a moving encoder.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"driftvq {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        sub = subparsers.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name in commands:
            module = import_module(f"driftvq.cli.{name}")
            sub.epilog = module.EXAMPLES
            for add in module.ARGUMENTS:
                add(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; a wrong value is one line on stderr and exit code 2."""
    as_program = argv is None
    argv = sys.argv[1:] if argv is None else argv
    name = f"driftvq {argv[0]}" if argv and argv[0] in COMMANDS else "driftvq"
    try:
        if argv and not argv[0].startswith("-"):
            check_name("command", argv[0], COMMANDS)
        parser = make_parser(argv[:1])  # imports the command's module, which takes a moment
        args = parser.parse_args(argv)
        if args.command is None:
            say(parser.format_help())
            return 2
        import_module(f"driftvq.cli.{args.command}").run(args)
    except (ValueError, OSError) as error:
        say(f"{name}: error: {error}")
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("driftvq"):
            raise
        packages = install_command("toys" if argv[0] == "toys" else "tokenizer")
        say(f"{name}: error: it needs more packages ({error}): {packages}")
        return 2
    except KeyboardInterrupt:
        if as_program:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process is ending; asking again cannot hasten it
        say(f"{name}: interrupted")
        return 130
    return 0
