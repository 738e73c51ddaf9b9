import pytest
import torch

from tests.training.runs import make_images


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of small pictures."""
    return make_images(tmp_path_factory.mktemp("pictures") / "pictures", 40)


@pytest.fixture
def one_thread():
    """Bits do not depend on how many threads the machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
