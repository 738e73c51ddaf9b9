import pytest
import torch

from driftvq.training import machine
from driftvq.training.config import TrainConfig
from driftvq.training.machine import pick_accelerator, pick_channels_last, pick_precision


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


def test_bf16_only_where_the_cpu_computes_it(monkeypatch):
    config = TrainConfig(accelerator="cpu")
    for avx, amx, expected in ((False, False, "32-true"), (True, False, "bf16-mixed"), (False, True, "bf16-mixed")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx=avx: avx, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        assert pick_precision(config) == expected


def test_a_torch_that_cannot_tell_means_no_bf16_on_cpus(monkeypatch):
    monkeypatch.setattr(machine.torch, "cpu", object())
    assert pick_precision(TrainConfig(accelerator="cpu")) == "32-true"


def test_bf16_on_gpus_unless_forced(gpu):
    assert pick_precision(TrainConfig()) == "bf16-mixed"
    assert pick_precision(TrainConfig(precision="32-true")) == "32-true"
    assert pick_accelerator("cpu") == "cpu"
    assert pick_accelerator("gpu") == "cuda"


def test_layout(gpu):
    assert pick_channels_last(TrainConfig())
    assert not pick_channels_last(TrainConfig(channels_last="off"))
    assert not pick_channels_last(TrainConfig(accelerator="mps"))
    assert pick_channels_last(TrainConfig(accelerator="mps", channels_last="on"))
