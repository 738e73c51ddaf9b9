import pytest

from tests.tokens.cases import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a small saved model."""
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    return str(folder)
