import pytest
import torch

from driftvq.machine import pick_accelerator
from driftvq.training.config import TrainConfig
from driftvq.training.fabric import make_fabric, memory_layout, pick_precision


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
    monkeypatch.setattr(torch, "cpu", object())
    assert pick_precision(TrainConfig(accelerator="cpu")) == "32-true"


def test_bf16_on_gpus_unless_forced(gpu):
    assert pick_precision(TrainConfig()) == "bf16-mixed"
    assert pick_precision(TrainConfig(precision="32-true")) == "32-true"
    assert pick_accelerator("cpu") == "cpu"
    assert pick_accelerator("gpu") == "cuda"


def test_float16_is_for_gpus(gpu):
    assert pick_precision(TrainConfig(precision="16-mixed")) == "16-mixed"
    assert pick_precision(TrainConfig(precision="16-mixed", accelerator="cpu")) == "bf16-mixed"


def test_layout(gpu):
    assert memory_layout(TrainConfig()) == torch.channels_last
    assert memory_layout(TrainConfig(channels_last="off")) == torch.contiguous_format
    assert memory_layout(TrainConfig(accelerator="mps")) == torch.contiguous_format
    assert memory_layout(TrainConfig(accelerator="mps", channels_last="on")) == torch.channels_last


def test_what_concerns_machines_goes_to_lightning_unchanged(monkeypatch):
    given = {}
    monkeypatch.setattr("driftvq.training.fabric.Fabric", lambda **options: given.update(options))
    settings = {"devices": "0,1", "num_nodes": 3, "accelerator": "gpu", "precision": "bf16-mixed"}
    make_fabric(TrainConfig(strategy="ddp_find_unused_parameters_true", **settings))
    assert given.items() >= {**settings, "strategy": "ddp_find_unused_parameters_true"}.items()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is there")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accelerator": "cuda"}, "Lightning cannot work with accelerator='cuda'"),
        ({"accelerator": "cpu", "strategy": "fsdp"}, "strategy must be auto or a form of ddp, .*; got 'fsdp'"),
        ({"accelerator": "cpu", "strategy": "dpp"}, "dpp"),
        ({"accelerator": "cpu", "strategy": "ddp_spawn"}, "such as ddp; got 'ddp_spawn'"),
        ({"accelerator": "cpu", "devices": "x"}, "devices='x'"),
        ({"accelerator": "cpu", "devices": 0}, "devices=0"),
        ({"accelerator": "cpx"}, "cpx"),
    ],
)
def test_a_machine_that_is_not_there_is_a_clear_error(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_fabric(TrainConfig(**settings))
    assert "\n" not in str(caught.value)
