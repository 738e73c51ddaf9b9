import numpy as np
import pytest
import torch

from driftvq.models import VQVAE, quantize_afterwards, save_pretrained
from driftvq.models.afterwards import sample_latents
from tests.models.cases import make_images, make_model


def latents_of(model, batches):
    with torch.no_grad():
        return torch.cat([model.encoder(images).permute(0, 2, 3, 1).reshape(-1, 12) for images in batches])


def test_the_codebook_is_a_k_means_fixed_point_of_the_latents():
    model = make_model("none")
    batches = [make_images(4, 16, 16, seed=seed) for seed in range(3)]
    quantized = quantize_afterwards(model, batches, codebook_size=8, seed=0)
    latents = latents_of(model, batches).numpy()
    codebook = quantized.quantizer.codebook.detach().numpy()
    cells = ((latents[:, None] - codebook) ** 2).sum(2).argmin(1)
    assert set(cells) == set(range(8))
    for code in range(8):
        assert np.allclose(latents[cells == code].mean(0), codebook[code], atol=1e-5)
    indices = torch.cat([quantized.encode(images).flatten() for images in batches])
    assert np.array_equal(indices.numpy(), cells)


def test_it_is_a_frozen_model_like_any_other(tmp_path):
    model, images = make_model("none"), make_images()
    before = model.reconstruct(images)
    quantized = quantize_afterwards(model, [images], codebook_size=16, seed=0)
    assert (quantized.config.quantizer, quantized.config.codebook_size) == ("vq", 16)
    assert not quantized.training
    codebook = quantized.quantizer.codebook.clone()
    quantized.train()
    output = quantized(images)
    (output.images.sum() + output.loss).backward()
    assert quantized.quantizer.book.codes.grad is None
    assert torch.equal(quantized.quantizer.codebook, codebook)
    assert torch.equal(model.reconstruct(images), before)
    save_pretrained(quantized, tmp_path)
    loaded = VQVAE.from_pretrained(tmp_path)
    assert torch.equal(loaded.reconstruct(images), quantized.reconstruct(images))
    assert loaded.quantizer.freeze_codebook


def test_more_codes_reconstruct_better():
    model = make_model("none", steps=40)
    batches = [make_images(8, 16, 16, seed=seed) for seed in range(4)]
    errors = []
    for size in (1, 16, 256):
        quantized = quantize_afterwards(model, iter(batches), codebook_size=size)
        errors.append(sum((quantized.latents(x) - codes(quantized, x)).square().mean().item() for x in batches))
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


def codes(model, images):
    return model.quantizer.indices_to_codes(model.encode(images))


def test_seeds():
    model, batches = make_model("none"), [make_images(8, 16, 16)]
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one = quantize_afterwards(model, batches, 8, seed=1).quantizer.codebook
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, quantize_afterwards(model, batches, 8, seed=1).quantizer.codebook)
    assert not torch.equal(one, quantize_afterwards(model, batches, 8, seed=2).quantizer.codebook)


def test_the_sample_is_bounded_uniform_and_without_repetition():
    model = make_model("none", steps=0)
    batches = [make_images(2, 16, 16, seed=seed) for seed in range(6)]
    everything = latents_of(model, batches)
    rows = {tuple(row): number for number, row in enumerate(everything.tolist())}
    assert len(rows) == 192
    counts = np.zeros(192)
    for seed in range(60):
        sample = sample_latents(model, iter(batches), 48, torch.Generator().manual_seed(seed))
        drawn = [rows[tuple(row)] for row in sample.tolist()]
        assert len(set(drawn)) == 48
        counts[drawn] += 1
    # Each latent is drawn with probability ¼: 15 ± 3.4 of 60 times; each batch 480 ± 10 times or so.
    assert counts.min() > 1
    assert counts.max() < 30
    assert np.abs(counts.reshape(6, 32).sum(1) - 480).max() < 80
    all_of_them = sample_latents(model, batches, 1000, torch.Generator())
    assert torch.equal(all_of_them, everything)


@pytest.mark.parametrize(
    ("quantizer", "batches", "size", "message"),
    [
        ("vq", [make_images()], 8, "needs a model with quantizer 'none', got 'vq'"),
        ("none", [], 8, "codebook_size 8 needs as many latents, the images have 0"),
        ("none", [make_images(1, 8, 8)], 8, "codebook_size 8 needs as many latents, the images have 4"),
        ("none", [make_images()], 0, "codebook_size must be a whole number of at least 1, got 0"),
        ("none", [make_images() * 200], 8, r"images must lie in \[-1, 1\]"),
    ],
)
def test_errors(quantizer, batches, size, message):
    with pytest.raises(ValueError, match=message):
        quantize_afterwards(make_model(quantizer, steps=0), batches, size)
