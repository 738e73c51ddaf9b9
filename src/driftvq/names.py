"""Names that a user may mistype, wrong values in errors, names imported on first use, packages to install."""

import re
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from importlib import import_module, metadata
from typing import Any

SHOWN = 80  # characters of a wrong value that an error shows
FEW = 5  # names that an error shows of many
STARTER = "starter"  # the name of the small tokenizer that comes with the package

ELSEWHERE = {  # what papers and other libraries call our settings
    **dict.fromkeys(("beta", "commitment_cost", "commitment_beta", "commitment"), "commitment_weight"),
    **dict.fromkeys(("n_embed", "n_e", "num_embeddings", "num_codes", "vocab_size"), "codebook_size"),
    **dict.fromkeys(("embed_dim", "embedding_dim", "e_dim", "latent_dim"), "code_dim"),
    **dict.fromkeys(("image_size", "img_size", "resolution"), "size"),
    **dict.fromkeys(("max_steps", "num_steps", "iterations"), "steps"),
    **dict.fromkeys(("output", "output_dir", "outdir", "out_dir"), "out"),
    **{"lr": "learning_rate", "bs": "batch_size", "num_workers": "workers", "dataset": "data"},
    **{"gpus": "devices", "gpu": "accelerator", "accept_image_fmap": "channel_first"},
}


def check_name(what: str, name: str, known: Iterable[str], listed_by: str | None = None, file: object = None) -> str:
    """The name, if it is known; else an error that lists the known ones, nearest first, and the file that has it.

    Where they are many and a command lists them, the error names the nearest few and the command.
    """
    names = list(known)
    if name not in names:
        near = nearest_names(name, names)[: None if listed_by is None else FEW]
        near = [repr(one) if "," in one else one for one in near]
        rest = "" if listed_by is None else f"; all: {listed_by}"
        what = f"unknown {what}" if file is None else f"{file}: unknown {what}"
        raise ValueError(f"{what} {shortened(name)}; known, nearest first: {', '.join(near) or 'none'}{rest}")
    return name


def nearest_names(name: str, known: Iterable[str], least: float = 0.0) -> list[str]:
    """The known names that are at least so alike (0 to 1), nearest first; what others call a thing is like its name."""
    wanted = name[:SHOWN].lower().replace("-", "_")
    wanted = ELSEWHERE.get(wanted, wanted)
    alike = {other: SequenceMatcher(None, wanted, other.replace("-", "_")).ratio() for other in known}
    return sorted((other for other, ratio in alike.items() if ratio >= least), key=lambda other: -alike[other])


def shortened(value: Any) -> str:
    """A value as text for an error."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists without end
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def shortened_text(text: str, most: int = 4 * SHOWN) -> str:
    """One line of a text, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def reason_of(error: BaseException) -> str:
    """What an error says, in one line; its kind, if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def importer(package: str, **modules: str) -> Callable[[str], Any]:
    """A package's ``__getattr__``, so that importing the package does not load what few of its users need.

    ``modules`` are those of the package, each with the names that it has, in one text.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in places:
            return getattr(import_module(f"{package}.{places[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


def install_command(extra: str) -> str:
    """The command that installs what an extra of driftvq asks for and is not there, wherever driftvq came from."""
    try:
        declared = metadata.requires("driftvq") or []
    except metadata.PackageNotFoundError:  # run from its sources
        declared = []
    marked = (line.partition(";") for line in declared)
    needed = [package.strip() for package, _, marker in marked if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    missing = [package for package in needed if version_of(re.split(r"[^\w.-]", package)[0]) is None]
    names = " ".join(f'"{package}"' for package in missing or needed)
    return f"pip install {names}" if names else f'pip install ".[{extra}]" in a checkout of driftvq'


def needed(module: str, what: str, extra: str = "tokenizer") -> Any:
    """A module of a package that is not always there; without it, an error says what needs it, and the command."""
    try:
        import_module(module.partition(".")[0])  # a part that is there already says nothing of the whole
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{what}: {install_command(extra)}") from error


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def positive_int(name: str, value: object) -> int:
    """The value of an argument, if it is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {shortened(value)}")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value of an argument, if it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def in_range(name: str, value: float, low: float, high: float) -> float:
    """The value of an argument, if it lies between ``low`` and ``high``, both allowed."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value!r}")
    return value
