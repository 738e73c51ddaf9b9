import torch

from driftvq.data import ImageBatch, to_float, to_uint8
from driftvq.metrics import model_pairs
from driftvq.models import VQVAE, ModelConfig


def image_batches():
    generator = torch.Generator().manual_seed(0)
    for count in (3, 2):
        images = torch.randint(0, 256, (count, 3, 18, 23), dtype=torch.uint8, generator=generator)
        yield ImageBatch(images, [str(number) for number in range(count)], [("bad.jpg", "truncated")])


def test_pairs_are_originals_reconstructions_and_indices():
    model = VQVAE(ModelConfig(codebook_size=32, code_dim=8)).eval()
    skipped = []
    pairs = list(model_pairs(model, image_batches(), skipped=lambda *problem: skipped.append(problem)))
    assert skipped == [("bad.jpg", "truncated")] * 2
    for (real, fake, indices), batch in zip(pairs, image_batches(), strict=True):
        assert torch.equal(real, batch.images)
        assert fake.dtype == torch.uint8
        assert torch.equal(indices, model.encode(to_float(real)))
        assert torch.equal(fake, to_uint8(model.reconstruct(to_float(real))))


def test_a_plain_autoencoder_has_no_indices():
    model = VQVAE(ModelConfig(quantizer="none", code_dim=8)).eval()
    for real, fake, indices in model_pairs(model, image_batches()):
        assert indices is None
        assert fake.shape == real.shape


def test_images_smaller_than_a_token_are_skipped():
    model = VQVAE(ModelConfig(codebook_size=32, code_dim=8)).eval()
    batches = [ImageBatch(torch.zeros(2, 3, side, 9, dtype=torch.uint8), ["a", "b"], []) for side in (3, 8)]
    skipped = []
    pairs = list(model_pairs(model, batches, skipped=lambda *problem: skipped.append(problem)))
    assert [tuple(real.shape) for real, _, _ in pairs] == [(2, 3, 8, 9)]
    assert skipped == [(name, "3×9 pixels, the model needs 4×4") for name in "ab"]
