import pytest
import torch

from driftvq.machine import pick_device
from driftvq.models.pretrained import model_hash
from driftvq.tokens.loading import load_model
from tests.tokens.cases import make_model


def test_a_cpu_takes_images_one_by_one_unless_told(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), "cpu")
    assert loaded.batch_size == 1
    assert loaded.device == torch.device("cpu")
    assert model_hash(loaded.model) == model_hash(model)
    assert not loaded.model.training
    assert load_model(str(tmp_path), "cpu", 5).batch_size == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "unknown device 'gpu'; known, nearest first: "),
        ("cpu:x", "device must be auto, cpu, cuda, cuda:N or mps, got 'cpu:x'"),
    ],
)
def test_unknown_devices_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        pick_device(name)


def test_auto_takes_what_is_there(monkeypatch):
    for cuda, mps, device in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert pick_device("auto") == torch.device(device)
        assert pick_device("cpu") == torch.device("cpu")


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda:1' is not available here; allowed: auto, cpu"):
        pick_device("cuda:1")
