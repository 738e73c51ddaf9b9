"""What the subcommands share: how they speak, and the arguments that they accept."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from driftvq.names import ELSEWHERE, nearest_names, shortened, shortened_text
from driftvq.records.runs import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, MODEL

LIKE = 0.6  # how alike a known flag must be to be proposed
OPTIONS = "--quantizer-options"  # the flag of what only some quantizers have
EMBEDDED = "embedded"  # the name of the photographs that come with the packages


class Parser(argparse.ArgumentParser):
    """A parser that answers for its own unknown flags, with its usage and the nearest flag that it knows."""

    def __init__(self, **options: Any) -> None:
        # Flags are written out: else ``--beta`` would be taken for ``--betas``.
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **options})
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; unlike argparse, a command's parser does not leave what it does not know to the one above it."""
        self._words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(next((word for word in unknown if word.startswith("-")), unknown[0])))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say it; of a flag that is missed, whether another one was written in its place."""
        flags = [word for word in self._words if word.startswith("-") and word.lstrip("-")[:1].isalpha()]
        wrong = [flag for flag in flags if flag.partition("=")[0] not in self._option_string_actions]
        super().error(self._unknown(wrong[0]) if wrong and "are required" in message else message)

    def _unknown(self, word: str) -> str:
        flag = word.partition("=")[0]
        if not flag.startswith("-"):
            return f"unexpected {shortened(word)}"
        known = {name.lstrip("-"): name for name in self._option_string_actions}
        name = flag.lstrip("-").replace("-", "_")
        near = nearest_names(name, known, LIKE)
        hint = f"did you mean {known[near[0]]}?" if near else "--help lists the known ones"
        if not near and OPTIONS in self._option_string_actions:
            hint += f"; an option of the quantizer: {OPTIONS} {shortened_text(ELSEWHERE.get(name, name))}=VALUE"
        return f"unknown flag {shortened_text(flag)}; {hint}"


def say(line: str) -> None:
    """Progress and errors go to stderr, results to stdout."""
    sys.stderr.write(line + "\n")


def whole(least: int) -> Callable[[str], int]:
    """Parse a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


Argument = Callable[[argparse.ArgumentParser], object]  # adds itself to the parser of a command


def arg(*names: str, **options: Any) -> Argument:
    """An argument of a command, as argparse describes it."""
    return lambda parser: parser.add_argument(*names, **options)


def number(name: str, text: str, least: int = 1, **options: Any) -> Argument:
    """A flag that takes a whole number."""
    return arg(name, type=whole(least), help=text, **{"metavar": "N", **options})


WHOSE = arg("model", metavar="MODEL", help="a run's folder, a saved model's, user/name on the hub, or starter")
DEVICE = (  # where the model runs, and the limit that keeps a huge image from taking all memory
    arg("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps (default: auto)"),
    number("--max-pixels", "leave out images with more pixels (default: as many as the free memory allows)"),
)
RUNNING = (  # how images reach the model, and where and in which batches it runs
    number("--size", "side of the centre square (default: each image as it is)"),
    number("--batch-size", "images of equal size per call of the model (default: 1 on a CPU, where an image's tokens "
           "then do not depend on its neighbours in the last bit; 16 on a GPU)"),
    *DEVICE,
)  # fmt: skip


def folder_to_resume(named: str, out: str | Path | None, what: str, metavar: str) -> Path:
    """The folder that ``--resume`` names, or else ``--out``; both may name the same."""
    if named and out and Path(named) != Path(out):
        raise ValueError(f"--resume {named} continues in its own folder; got another --out {out}")
    if not (named or out):
        raise ValueError(f"--resume needs the {what} to continue: --resume {metavar}, or --out {metavar} beside it")
    return Path(named or str(out))


def find_run(model: str) -> Path | None:
    """The folder of a run, if the model is given as one or as the ``model`` in it."""
    path = Path(model)
    for folder in (path, path.parent) if path.name == MODEL else (path,):
        if any((folder / name).exists() for name in (METRICS_FILE, CONFIG_FILE, CHECKPOINTS)):
            return folder
    return None
