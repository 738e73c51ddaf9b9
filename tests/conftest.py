import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trial-seconds", type=float, help="how long each fuzzer runs; default: a few trials")
    parser.addoption("--trial-seed", type=int, default=0, help="the fuzzers' first; another makes other changes")


class Trials:
    """Counts what is tried, and what held; `benchmarks/reliability.py` adds up what all tests count."""

    def __init__(self, seconds: float | None, seed: int = 0) -> None:
        self.seconds, self.seed, self.tried, self.held = seconds, seed, 0, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One trial, which holds if nothing is raised in it."""
        self.tried += 1
        yield
        self.held += 1


@pytest.fixture
def trials(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Trials]:
    """For a test with the mark ``trial``, which names the kind."""
    counted = Trials(*(request.config.getoption(f"--trial-{name}") for name in ("seconds", "seed")))
    yield counted
    for name, value in (("trial", request.node.get_closest_marker("trial").args[0]), *vars(counted).items()):
        record_property(name, value)


QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing(reason: str) -> None:
    """Skip the test, but not where everything has to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; its event loop ends with the module, so that other tests may have their own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed: pip install playwright")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        missing("no chromium on PATH: `make browser` installs it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=list(QUIET))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shared_data(pytestconfig: pytest.Config) -> Path:
    """Images that are not part of the project: faces, and the example triple of the LPIPS authors."""
    folder = pytestconfig.rootpath.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the images for experiments are not at ../shared/data")
    return folder
