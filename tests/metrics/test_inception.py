import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from driftvq.metrics import FeatureMoments, Inception, frechet_distance, kid
from driftvq.metrics.inception import CHUNK, inception_input, load_script
from tests.metrics.conftest import need_weights


@pytest.fixture(scope="module")
def inception():
    need_weights("inception")
    return Inception()


def test_the_fast_network_equals_the_torchscript_one(inception, photos):
    images, _ = photos(2, 64)
    with torch.no_grad():
        theirs = load_script()(inception_input(images, (0, 255)))
    ours = inception(images)
    assert ours.shape == (2, 2048)
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert theirs.std() > 0.1


def test_ranges_are_the_same_images(inception, photos):
    images, _ = photos(1, 64)
    for low, high in ((-1, 1), (0, 1)):
        inputs = inception_input(images / 255 * (high - low) + low, (low, high))
        torch.testing.assert_close(inputs, inception_input(images, (0, 255)), rtol=0, atol=1e-5)


def test_the_input_is_the_bilinear_resize_and_the_original_scaling(photos):
    images, _ = photos(1, 24)
    resized = inception_input(images, (0, 255))[0, 0].numpy()
    places = np.clip((np.arange(299) + 0.5) * 24 / 299 - 0.5, 0, 23)
    plane = images[0, 0].numpy().astype(float)
    rows = np.stack([np.interp(places, np.arange(24), row) for row in plane])
    expected = np.stack([np.interp(places, np.arange(24), column) for column in rows.T]).T
    np.testing.assert_allclose(resized, (expected - 128) / 128, atol=1e-5)


def test_large_images_are_smoothed_before_they_shrink():
    stripes = torch.zeros(1, 3, 598, 598, dtype=torch.uint8)
    stripes[..., ::4] = stripes[..., 1::4] = 255
    contrast = inception_input(stripes, (0, 255))[..., 2:-2].std()
    assert contrast < 0.6 * F.interpolate(stripes.float() / 128, (299, 299), mode="bilinear").std()


def test_images_of_the_networks_size_are_not_resized():
    image = torch.randint(0, 256, (1, 3, 299, 299), dtype=torch.uint8)
    assert torch.equal(inception_input(image, (0, 255)), (image.float() - 128) / 128)


def test_batches_are_cut_into_chunks(inception, monkeypatch):
    seen = []
    network = nn.Module()
    network.forward = lambda x: seen.append(len(x)) or x.mean((1, 2, 3))[:, None].expand(-1, 2048)
    monkeypatch.setattr(inception, "network", network)
    levels = torch.arange(2 * CHUNK + 3, dtype=torch.uint8)
    features = inception(levels.view(-1, 1, 1, 1).expand(-1, 3, 8, 8))
    assert seen == [CHUNK, CHUNK, 3]
    torch.testing.assert_close(features[:, 7], (levels - 128.0) / 128)
    assert inception(torch.zeros(0, 3, 8, 8, dtype=torch.uint8)).shape == (0, 2048)


@pytest.mark.parametrize(
    ("images", "value_range", "message"),
    [
        (torch.zeros(1, 1, 8, 8), (0, 1), r"3 channels \(RGB\), got 1"),
        (torch.zeros(3, 8, 8), (0, 1), "images must be b 3 h w"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), (0, 255), r"uint8 or float, got torch\.int64"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), (-1, 1), r"must be \(0, 255\), got \(-1, 1\)"),
        (torch.zeros(1, 3, 8, 8), (1, 1), r"value_range must be \(lowest, highest\)"),
    ],
)
def test_wrong_images_are_refused(images, value_range, message):
    with pytest.raises(ValueError, match=message):
        inception_input(images, value_range)


@pytest.mark.slow
def test_the_documented_values_of_torchmetrics(inception):
    """FID 12.6388 (64 features) and KID 0.0312 ± 0.0025, up to the noise of the images: no seed is documented."""
    generator = torch.Generator().manual_seed(42)
    dark = torch.randint(0, 200, (100, 3, 299, 299), dtype=torch.uint8, generator=generator)
    bright = torch.randint(100, 255, (100, 3, 299, 299), dtype=torch.uint8, generator=generator)
    stem = nn.Sequential(*list(inception.network)[:4])
    moments = []
    for images in (dark, bright):
        early = FeatureMoments(64)
        for part in images.split(20):
            early.update(stem(inception_input(part, (0, 255))).mean((2, 3)))
        moments += [early.mean, early.covariance]
    assert frechet_distance(*moments).item() == pytest.approx(12.6388, abs=0.1)
    result = kid(inception(dark), inception(bright), subsets=100, subset_size=50)
    assert result.mean == pytest.approx(0.0312, abs=0.006)
    assert result.std == pytest.approx(0.0025, abs=0.001)
