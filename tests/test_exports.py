import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_origin

import pytest

import driftvq
from driftvq import functional

TESTS = Path(__file__).parent
MODULES = [
    f"driftvq{part}"
    for part in (
        "",
        ".data",
        ".drift_meter",
        ".functional",
        ".metrics",
        ".models",
        ".quantizers",
        ".report",
        ".tokens",
        ".training",
    )
]
FUNCTIONS = [
    name
    for name in functional.__all__
    if callable(getattr(functional, name)) and get_origin(getattr(functional, name)) is None
]


def isort_key(name):
    """Constants, then classes, then the rest, as ruff sorts ``__all__``."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return rank, name


@pytest.mark.parametrize("module", MODULES)
def test_all_names_are_importable(module):
    loaded = import_module(module)
    assert all(getattr(loaded, name) is not None for name in loaded.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_all_names_are_sorted_and_unique(module):
    names = import_module(module).__all__
    assert names == sorted(names, key=isort_key)
    assert len(names) == len(set(names))


def test_every_quantizer_name_is_at_the_top():
    quantizers = import_module("driftvq.quantizers")
    assert set(quantizers.__all__) <= set(driftvq.__all__)
    assert all(getattr(driftvq, name) is getattr(quantizers, name) for name in quantizers.__all__)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'VQVAE3'"):
        driftvq.VQVAE3  # noqa: B018


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_does_not_import_torch():
    heavy = "{'torch', 'numpy', 'faiss'}"
    assert run_python(f"import sys, driftvq; driftvq.__version__; print({heavy} & set(sys.modules))") == "set()"


def test_a_star_import_gives_every_name():
    assert run_python("from driftvq import *; print(VQ.__name__, functional.nearest.__name__)") == "VQ nearest"


def test_the_version_is_that_of_the_distribution():
    assert re.search(r'(?m)^version = "(.*)"$', (TESTS.parent / "pyproject.toml").read_text())[1] == driftvq.__version__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_a_test_module_that_names_it(name):
    mentions = [path.name for path in TESTS.glob("functional/test_*.py") if re.search(rf"\b{name}\b", path.read_text())]
    assert mentions, f"no module in tests/functional mentions {name}"
