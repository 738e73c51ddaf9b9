import shutil
from pathlib import Path

import pytest

from tests.report.synthetic import write_comparison


@pytest.fixture(scope="session")
def sweep_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison over three codebook sizes and three seeds; read it, do not change it."""
    return write_comparison(tmp_path_factory.mktemp("comparisons") / "sweep", images=3, size=32)


@pytest.fixture(scope="session")
def plain_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison without a sweep, two seeds; read it, do not change it."""
    return write_comparison(
        tmp_path_factory.mktemp("comparisons") / "plain", sweep=None, seeds=(0, 1), images=3, size=32
    )


@pytest.fixture
def plain(plain_source: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(plain_source, tmp_path / "plain"))
