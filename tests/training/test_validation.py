import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import nn

from driftvq import make_quantizer
from driftvq.data import to_float
from driftvq.models.vqvae import code_tensors
from driftvq.training.validation import ValidationSums, WeightAverage, beats, name_data


def model():
    net = nn.BatchNorm1d(3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return net


def test_the_average_follows_its_recursion_from_the_first_update_on():
    net = model()
    average = WeightAverage(net, 0.7)
    with torch.no_grad():
        net.weight.mul_(5)  # what there was before the first update does not count
    average.update_parameters(net)
    expected = net.weight.detach().numpy().copy()
    for step in range(1, 30):
        with torch.no_grad():
            net.weight.add_(torch.tensor([0.1, -0.2, 0.3]))
        average.update_parameters(net)
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * net.weight.detach().numpy()
    np.testing.assert_allclose(average.module.weight.detach().numpy(), expected, rtol=1e-5)


def test_buffers_are_taken_as_they_are():
    net = model()
    average = WeightAverage(net, 0.9)
    average.update_parameters(net)
    net.running_mean += 1
    net.num_batches_tracked += 7
    average.update_parameters(net)
    assert average.module.running_mean.tolist() == [1, 1, 1]
    assert average.module.num_batches_tracked == 7


@pytest.mark.parametrize("name", ["vq", "ema_vq", "ns_vq", "cvq", "residual_vq"])
def test_codes_are_the_latest_ones_and_weights_around_them_are_averaged(name):
    """A code that is replaced jumps: an average would put it where no latent is."""
    net = nn.Sequential(nn.Linear(3, 3), make_quantizer(name, dim=3, codebook_size=4, codebook_dim=2))
    average = WeightAverage(net, 0.9)
    average.update_parameters(net)
    with torch.no_grad():
        for codes in code_tensors(net):
            codes[0] += 100
        for linear in (module for module in net.modules() if isinstance(module, nn.Linear)):
            linear.weight += 11
    average.update_parameters(net)
    pairs = list(zip(code_tensors(average.module), code_tensors(net), strict=True))
    assert pairs
    assert all(torch.equal(kept, codes) for kept, codes in pairs)
    weights = [[m.weight for m in one.modules() if isinstance(m, nn.Linear)] for one in (average.module, net)]
    assert len(weights[0]) == 3
    for kept, weight in zip(*weights, strict=True):
        np.testing.assert_allclose((weight - kept).detach().numpy(), 2, rtol=1e-5)


def test_the_model_keeps_its_own_weights():
    net = model()
    average = WeightAverage(net, 0.9)
    own = net.weight.detach().clone()
    for _ in range(3):
        average.update_parameters(net)
    assert torch.equal(net.weight, own)
    assert average.module.weight is not net.weight


def test_continues_from_its_state():
    net = model()
    first, second = WeightAverage(net, 0.9), WeightAverage(net, 0.9)
    for factor in (2, 3, 4):
        with torch.no_grad():
            net.weight.mul_(factor)
        first.update_parameters(net)
    second.load_state_dict(first.state_dict())
    for average in (first, second):
        average.update_parameters(net)
    assert second.n_averaged == 4
    assert torch.equal(second.module.weight, first.module.weight)


def test_a_codebook_whose_start_is_under_way_is_taken_as_it_is():
    quantizer = make_quantizer("ema_vq", dim=4, codebook_size=8, codebook_dim=2, kmeans_init=True)
    average = WeightAverage(quantizer, 0.9)
    for seed in range(4):
        quantizer(torch.randn(quantizer.start.needed // 4, 4, generator=torch.Generator().manual_seed(seed)))
        average.update_parameters(quantizer)
        assert torch.equal(average.module.start.pending, quantizer.start.pending)
    assert quantizer.start.done
    assert average.module.start.done


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


@pytest.mark.parametrize(
    ("value", "best", "name", "expected"),
    [
        (20.0, None, "psnr", True),
        (20.0, 19.0, "psnr", True),
        (20.0, 20.0, "psnr", False),
        (19.0, 20.0, "psnr", False),
        (0.1, 0.2, "loss", True),
        (0.2, 0.1, "loss", False),
        (math.nan, None, "psnr", False),
        (math.inf, 20.0, "psnr", False),
        (None, None, "psnr", False),
    ],
)
def test_which_value_is_better(value, best, name, expected):
    assert beats(value, best, name) is expected


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (None, "embedded photographs"),
        ("/home/me/photos", "photos"),
        ("/home/me/celeba/train", "celeba/train"),
        ("../imagenet/train-{0000..1023}.tar", "imagenet/train-{0000..1023}.tar"),
        ("hf:user/flowers:train", "hf:user/flowers:train"),
        ("train", "train"),
    ],
)
def test_a_card_names_the_images_and_not_their_split_alone(spec, name):
    assert name_data(spec) == name
