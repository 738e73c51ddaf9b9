import numpy as np
import pytest
import torch

from driftvq.data import eval_batches, to_float, write_image
from driftvq.experiments.measuring import UsageProbe, describe_codes, flattened, readings
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.run import open_images
from driftvq.training.settings import make_config
from tests.training.runs import make_images

IMAGES = torch.rand(2, 3, 16, 16) * 2 - 1


def test_the_map_is_the_first_two_principal_components():
    points = torch.randn(50, 5) @ torch.diag(torch.tensor([0.1, 5.0, 0.2, 2.0, 0.1]))
    centred = (points - points.mean(dim=0)).double().numpy()
    _, _, axes = np.linalg.svd(centred)
    expected = np.abs(centred @ axes[:2].T)
    assert np.allclose(np.abs(flattened(points).numpy()), expected, atol=1e-3 * expected.max())


@pytest.mark.parametrize("quantizer", ["vq", "factorized_vq", "trans_vq", "fsq", "ema_vq"])
def test_codes_and_latents_are_shown_where_they_are_compared(quantizer):
    model = VQVAE(ModelConfig(quantizer=quantizer, codebook_size=64, code_dim=12)).eval()
    codes = describe_codes(model, torch.arange(64), IMAGES)
    assert codes.counts == tuple(range(64))
    assert codes.point_codes == tuple(range(64))
    assert len(codes.points) == 64
    assert len(codes.latents) == (0 if quantizer == "fsq" else 32)


def test_of_several_codebooks_the_first_is_shown():
    options = {"num_quantizers": 3}
    model = VQVAE(ModelConfig(quantizer="residual_vq", codebook_size=16, code_dim=4, quantizer_options=options)).eval()
    codes = describe_codes(model, torch.arange(16), IMAGES)
    assert len(codes.points) == len(codes.counts) == 16


@pytest.mark.parametrize("quantizer", ["vq", "residual_vq"])
def test_usage_is_counted_over_enough_latents_and_says_which(tmp_path, quantizer):
    data = make_images(tmp_path / "train", 12).parent
    make_images(tmp_path / "val", 4)
    config = make_config({"data": str(data), "size": 16, "quantizer": quantizer, "codebook_size": 4, "code_dim": 4})
    model = VQVAE(ModelConfig.from_dict(config.model_fields())).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe = UsageProbe(config)
    found = probe.read(model)
    # 16 latents an image, 200 needed of each: 64 and 64 of the held-out images, 192 and 192 of those to train on
    assert probe.over == (
        "128 latents per code (held-out images, mirrored held-out images, training images, mirrored training images)"
    )
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with eval_batches(open_images(config, "val"), size=16, batch_size=4) as batches:
        (val,) = (batch.images for batch in batches)
    with eval_batches(open_images(config, "train"), size=16, batch_size=12) as batches:
        (train,) = (batch.images for batch in batches)
    indices = model.encode(to_float(torch.cat([val, val.flip(3), train, train.flip(3)]))).reshape(32 * 16, -1).numpy()
    shares = [np.bincount(level, minlength=4) / len(level) for level in indices.T]
    assert found["usage"] == pytest.approx(np.mean([(share > 0).mean() for share in shares]))
    entropies = [-(share[share > 0] * np.log(share[share > 0])).sum() for share in shares]
    assert found["perplexity"] == pytest.approx(np.mean(np.exp(entropies)))
    assert probe.latents == 32 * 16
    assert probe.counts.tolist() == np.bincount(indices.flatten(), minlength=4).tolist()


def test_usage_is_counted_over_images_from_everywhere(tmp_path):
    """Of 400 images in the order of their names the last eighth alone need the second code; 100 images are counted."""
    data = tmp_path / "images"
    data.mkdir()
    for number in range(400):
        write_image(data / f"{number:03d}.png", np.full((4, 4, 3), 255 * (number >= 350), dtype=np.uint8))
    held_out = tmp_path / "black"
    held_out.mkdir()
    write_image(held_out / "0.png", np.zeros((4, 4, 3), dtype=np.uint8))
    config = make_config({"data": str(data), "val_data": str(held_out), "size": 4, "quantizer": "vq"})
    model = VQVAE(ModelConfig(quantizer="vq", codebook_size=2, code_dim=4)).eval()
    black, white = model.latents(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 3, 4, 4)).flatten(1)
    model.quantizer.book.codes.data.copy_(torch.stack([black, white]))
    probe = UsageProbe(config)
    assert probe.read(model)["usage"] == 1
    assert probe.over == "51 latents per code (held-out images, mirrored held-out images, training images)"


def test_a_plain_autoencoder_has_no_usage():
    assert UsageProbe(make_config({})).read(VQVAE(ModelConfig(quantizer="none"))) == {}


def test_readings_tell_flat_latents():
    model = VQVAE(ModelConfig(quantizer="ns_vq", codebook_size=8, code_dim=3))
    latents = torch.randn(4000, 3) @ torch.linalg.qr(torch.randn(3, 3)).Q
    flat = latents @ torch.diag(torch.tensor([1.0, 0.5, 0.01]))
    assert readings(model, flat)["thinnest"] == pytest.approx(0.01, rel=0.1)
    assert readings(model, latents)["thinnest"] > 0.9
    assert readings(model, latents)["relocated"] == 0


def test_large_codebooks_are_thinned_evenly():
    model = VQVAE(ModelConfig(quantizer="vq", codebook_size=5000, code_dim=1)).eval()
    codes = describe_codes(model, torch.zeros(5000, dtype=torch.int64), IMAGES)
    assert len(codes.points) == 2000
    assert (codes.point_codes[0], codes.point_codes[-1]) == (0, 4999)
    assert all(y == 0 for _, y in codes.points)
