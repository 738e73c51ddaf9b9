import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from driftvq import make_quantizer
from driftvq.data import to_float
from driftvq.training.validation import ValidationSums

CPU = torch.device("cpu")


def batch(seed, count, side=16):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    noisy = (images.int() + torch.randint(-9, 10, images.shape, generator=generator)).clamp(0, 255).to(torch.uint8)
    return images, noisy


def test_means_over_images_against_skimage():
    sums = ValidationSums(make_quantizer("vq", dim=4, codebook_size=8), CPU)
    psnrs, ssims = [], []
    for seed, count, loss in ((0, 3, 0.5), (1, 1, 0.1)):
        images, noisy = batch(seed, count)
        indices = torch.full((count, 4, 4), seed)
        sums.update(images, to_float(noisy), indices, torch.tensor(loss))
        for x, y in zip(images.permute(0, 2, 3, 1).numpy(), noisy.permute(0, 2, 3, 1).numpy(), strict=True):
            psnrs.append(peak_signal_noise_ratio(x, y, data_range=255))
            ssims.append(
                structural_similarity(
                    x.astype(float),
                    y.astype(float),
                    data_range=255,
                    channel_axis=2,
                    gaussian_weights=True,
                    sigma=1.5,
                    use_sample_covariance=False,
                )
            )
    values = sums.result()
    assert values["val/psnr"] == pytest.approx(np.mean(psnrs), abs=1e-4)
    assert values["val/ssim"] == pytest.approx(np.mean(ssims), abs=1e-4)
    assert values["val/loss"] == pytest.approx((3 * 0.5 + 0.1) / 4)
    assert values["val/usage"] == pytest.approx(2 / 8)
    p = np.array([3, 1]) / 4
    assert values["val/perplexity"] == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_several_codebooks_are_averaged():
    sums = ValidationSums(make_quantizer("residual_vq", dim=4, codebook_size=8, num_quantizers=2), CPU)
    images, noisy = batch(0, 2)
    indices = torch.zeros(2, 2, 2, 2, dtype=torch.int64)
    indices[..., 1] = torch.arange(8).reshape(2, 2, 2)
    sums.update(images, to_float(noisy), indices, torch.tensor(0.0))
    assert sums.result()["val/usage"] == pytest.approx((1 / 8 + 8 / 8) / 2)


def test_without_a_quantizer_there_is_no_usage_and_small_images_have_no_ssim():
    sums = ValidationSums(None, CPU)
    images, noisy = batch(0, 2, side=8)
    sums.update(images, to_float(noisy), None, torch.tensor(0.25))
    assert sorted(sums.result()) == ["val/loss", "val/psnr"]


def test_a_perfect_image_does_not_make_the_mean_infinite():
    sums = ValidationSums(None, CPU)
    images, _ = batch(0, 2)
    sums.update(images, to_float(images), None, torch.tensor(0.0))
    assert sums.result()["val/psnr"] == 100


def test_no_images_give_no_values_but_of_codes():
    sums = ValidationSums(make_quantizer("vq", dim=4, codebook_size=8), CPU)
    assert sums.result() == {"val/usage": 0.0, "val/perplexity": 0.0}
