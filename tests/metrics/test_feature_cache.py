import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from driftvq.metrics import feature_cache as cache_module
from driftvq.metrics.feature_cache import FeatureCache, image_key


class Extractor:
    """Three numbers of each image, and how many images it has seen."""

    def __init__(self):
        self.seen = 0

    def __call__(self, images):
        self.seen += len(images)
        return images.float().mean((2, 3)) / 255


@pytest.fixture
def images():
    return torch.randint(0, 256, (10, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def fill(folder, images):
    cache = FeatureCache(folder, 3)
    cache.features(images, Extractor())
    cache.write()


def test_known_images_are_not_computed_again_in_any_order(tmp_path, images):
    fill(tmp_path, images[:6])
    extractor, cache = Extractor(), FeatureCache(tmp_path, 3)
    order = torch.tensor([9, 2, 5, 7, 0])
    torch.testing.assert_close(cache.features(images[order], extractor), Extractor()(images[order]), rtol=0, atol=0)
    assert (extractor.seen, cache.hits, cache.misses) == (2, 3, 2)
    cache.features(images, extractor)
    assert extractor.seen == 4


def test_the_same_pixels_in_another_shape_are_another_image(images):
    assert image_key(images[0]) != image_key(images[0].reshape(3, 5, 6))
    assert image_key(images[0]) == image_key(images[:1].clone().to(memory_format=torch.channels_last)[0])
    with pytest.raises(ValueError, match="images must be uint8"):
        image_key(images[0].float())


def test_new_rows_are_written_in_segments(tmp_path, images, monkeypatch):
    monkeypatch.setattr(cache_module, "SEGMENT_ROWS", 4)
    extractor, cache = Extractor(), FeatureCache(tmp_path, 3)
    for image in images:
        cache.features(image[None], extractor)
        assert len(cache._unwritten) < 4
    assert len(list(tmp_path.iterdir())) == 2
    cache.features(images, extractor)
    assert extractor.seen == 10
    cache.write()
    assert len(list(tmp_path.iterdir())) == 3
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-7], lambda content: b"\xff" * 200])
def test_a_damaged_segment_is_ignored_and_rebuilt(tmp_path, images, damage):
    fill(tmp_path, images)
    (segment,) = tmp_path.iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(damage(whole))
    extractor, cache = Extractor(), FeatureCache(tmp_path, 3)
    torch.testing.assert_close(cache.features(images, extractor), Extractor()(images))
    assert extractor.seen == 10
    cache.write()
    assert segment.read_bytes() == whole


def test_a_changed_row_is_computed_again(tmp_path, images):
    fill(tmp_path, images)
    (segment,) = tmp_path.iterdir()
    content = bytearray(segment.read_bytes())
    row = Extractor()(images[4:5])[0].numpy().tobytes()
    content[content.index(row)] ^= 1
    segment.write_bytes(content)
    extractor, cache = Extractor(), FeatureCache(tmp_path, 3)
    torch.testing.assert_close(cache.features(images, extractor), Extractor()(images), rtol=0, atol=0)
    assert extractor.seen == 1
    cache.write()
    fill(tmp_path, images)
    FeatureCache(tmp_path, 3).features(images, extractor)
    assert extractor.seen == 1


def test_features_of_another_width_are_not_taken(tmp_path, images):
    fill(tmp_path, images)
    cache = FeatureCache(tmp_path, 2)
    assert cache.features(images, lambda x: torch.zeros(len(x), 2)).shape == (10, 2)
    assert cache.hits == 0


def test_a_file_of_something_else_is_ignored(tmp_path, images):
    save_file({"keys": np.zeros((), np.uint8)}, tmp_path / "a.safetensors")
    save_file({name: np.zeros((), np.uint8) for name in ("keys", "features", "checksums")}, tmp_path / "b.safetensors")
    cache = FeatureCache(tmp_path, 3)
    torch.testing.assert_close(cache.features(images, Extractor()), Extractor()(images))
    assert cache.hits == 0


def test_without_a_folder_nothing_is_kept(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extractor, cache = Extractor(), FeatureCache(None, 3)
    cache.features(images, extractor)
    cache.features(images, extractor)
    cache.write()
    assert extractor.seen == 20
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_reported_and_nothing_is_lost(tmp_path, images):
    (tmp_path / "file").write_text("")
    cache = FeatureCache(tmp_path / "file" / "folder", 3)
    torch.testing.assert_close(cache.features(images, Extractor()), Extractor()(images))
    cache.write()
    assert "could not be kept" in cache.problem


def test_a_failed_write_leaves_no_file(tmp_path, images, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    cache = FeatureCache(tmp_path, 3)
    cache.features(images, Extractor())
    monkeypatch.setattr(Path, "write_bytes", full)
    cache.write()
    assert "No space left on device" in cache.problem
    assert not list(tmp_path.iterdir())


def write_many(folder, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (30, 3, 4, 4), dtype=torch.uint8, generator=generator)
    for part in images.split(3):
        fill(folder, part)


def test_writers_do_not_disturb_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, seed)) for seed in (0, 0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    extractor, cache = Extractor(), FeatureCache(tmp_path, 3)
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (30, 3, 4, 4), dtype=torch.uint8, generator=generator)
        np.testing.assert_allclose(cache.features(images, extractor), images.float().mean((2, 3)) / 255, rtol=1e-6)
    assert extractor.seen == 0
