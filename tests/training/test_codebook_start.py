from itertools import islice

import pytest
import torch

from driftvq.data import to_float
from driftvq.drift_meter.probing import pending_starts
from driftvq.functional import kmeans
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.config import TrainConfig
from driftvq.training.fabric import make_fabric
from driftvq.training.loop import TrainingLoop
from driftvq.training.run import RunImages


def start(pictures, run, **changes):
    settings = {"data": str(pictures), "size": 16, "batch_size": 4, "code_dim": 8, "accelerator": "cpu"}
    config = TrainConfig(**{**settings, "precision": "32-true", "channels_last": "off", **changes})
    torch.manual_seed(0)
    model = VQVAE(ModelConfig.from_dict(config.model_fields()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images, told = RunImages(config), []
    run.mkdir(exist_ok=True)
    TrainingLoop(config, run, 1, images, model, make_fabric(config), told.append).start()
    return model, before, images, told


@pytest.mark.parametrize("quantizer", ["trans_vq", "ns_vq", "ema_vq"])
def test_the_codebook_is_the_k_means_of_training_latents_before_the_first_step(pictures, tmp_path, quantizer):
    options = {"kmeans_init": True}
    changes = {"quantizer": quantizer, "codebook_size": 40, "quantizer_options": options}
    model, before, images, told = start(pictures, tmp_path, **changes)
    batches = list(islice(images.start_batches(), 2))  # 64 latents each, 120 are needed
    with torch.no_grad():
        first, second = (model.encoder(to_float(b.images)).movedim(1, -1).reshape(-1, 8) for b in batches)
    spread = [i * 64 // 56 for i in range(56)]  # what is missing, from all over the second batch
    latest = torch.cat([first, second[spread]])[-80:]
    expected = kmeans(latest, 40, 10, generator=torch.Generator().manual_seed(0)).codebook
    assert torch.equal(model.quantizer.eval().codebook, expected)
    assert not model.quantizer.freeze_codebook
    assert model.quantizer.step == 0
    assert model.quantizer.code_age.sum() == 0
    for name, value in model.state_dict().items():
        if not name.startswith("quantizer"):
            assert torch.equal(value, before[name]), name
    assert told == ["k-means start: 40 codes placed among 128 latents"]


@pytest.mark.parametrize("quantizer", ["ns_vq", "residual_vq"])
def test_every_start_is_done_and_repeatable(pictures, tmp_path, quantizer):
    options = {"quantizer_options": {"kmeans_init": True}}
    model, before, _, _ = start(pictures, tmp_path, quantizer=quantizer, codebook_size=40, **options)
    assert pending_starts(model.quantizer) == []
    again, *_ = start(pictures, tmp_path, quantizer=quantizer, codebook_size=40, **options)
    codes = [name for name in before if name.endswith("codes")]
    assert codes
    for name in codes:
        assert not torch.equal(model.state_dict()[name], before[name])
        assert torch.equal(model.state_dict()[name], again.state_dict()[name])


@pytest.mark.parametrize(
    "changes",
    [
        {"quantizer": "fsq"},
        {"quantizer": "none"},
        {"quantizer": "vq"},
        {"quantizer": "ns_vq", "kmeans_batches": 0},
        {"quantizer": "ns_vq", "quantizer_options": {"freeze_codebook": True}},
    ],
)
def test_without_a_start_nothing_happens(pictures, tmp_path, changes):
    size = {} if changes["quantizer"] == "fsq" else {"codebook_size": 32}
    model, before, _, told = start(pictures, tmp_path, **size, **changes)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert told == []


def test_a_large_codebook_goes_on_during_the_first_steps(pictures, tmp_path):
    model, _, _, told = start(pictures, tmp_path, quantizer="ns_vq", codebook_size=500, kmeans_batches=2)
    (pending,) = pending_starts(model.quantizer)
    assert len(pending.pending) == 128
    assert "goes on during the first steps" in told[0]
