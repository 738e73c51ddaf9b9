import json
import tracemalloc

import numpy as np
import pytest
import torch

from driftvq.data.images import BadImageError, to_float
from driftvq.data.loader import ImageBatch, eval_batches
from driftvq.models.pretrained import model_hash
from driftvq.tokens import TokenWriter, encode_images, encode_source, open_tokens
from tests.tokens.cases import MODEL, Source, make_model

SIZES = [(16, 16)] * 5 + [(16, 20), (13, 18), (13, 18), (2, 16), (16, 16), (16, 16), (16, 16)]


@pytest.fixture(scope="module")
def model():
    return make_model()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("config", "shape", "dtype"),
    [
        ({}, (4, 5), "uint8"),
        ({"codebook_size": 300}, (4, 5), "uint16"),
        ({"quantizer": "residual_vq", "quantizer_options": {"num_quantizers": 3}}, (4, 5, 3), "uint8"),
        ({"quantizer": "grouped_vq", "quantizer_options": {"groups": 2}}, (4, 5, 2), "uint8"),
        ({"quantizer": "lfq"}, (4, 5), "uint8"),
        ({"network": "taming"}, (2, 3), "uint8"),
    ],
)
def test_tokens_are_those_of_the_model(config, shape, dtype, tmp_path):
    model = make_model(**config)
    source = Source([(16, 20)] * 5)
    tokens = encode_source(model, source, tmp_path / "tokens", batch_size=2)
    assert tokens.array.shape == (5, *shape)
    assert tokens.array.dtype == dtype
    assert tokens.index.model.model_hash == model_hash(model)
    assert tokens.index.model.downscale == model.downscale
    assert tokens.batch_sizes.tolist() == [2, 2, 1]
    for batch, rows in zip(eval_batches(source, size=None, batch_size=2), tokens.batches(), strict=True):
        assert np.array_equal(tokens.array[rows.start : rows.stop], model.encode(to_float(batch.images)).numpy())


def test_images_keep_their_sizes_and_the_unreadable_are_listed(model, tmp_path):
    source = Source(SIZES, bad=[3, 10])
    tokens = encode_source(model, source, tmp_path / "tokens", batch_size=4)
    good = [number for number in range(len(SIZES)) if number not in (3, 8, 10)]
    assert list(tokens.names()) == [source.name(number) for number in good]
    assert tokens.sizes.tolist() == [list(SIZES[number]) for number in good]
    assert tokens.batch_sizes.tolist() == [4, 1, 2, 2]
    assert sorted((tmp_path / "tokens" / "skipped.txt").read_text().splitlines()) == [
        f'"{source.name(3)}"\tbroken on purpose',
        f'"{source.name(8)}"\t2×16 pixels, the model needs 4×4',
        f'"{source.name(10)}"\tbroken on purpose',
    ]
    assert tokens.index.skipped == 3


@pytest.mark.parametrize(("bad", "message"), [([3], "cannot read .*00003.jpg: broken"), ([], "2×16 pixels, the model")])
def test_strict_stops_at_the_first_bad_image(bad, message, model, tmp_path):
    with pytest.raises(BadImageError, match=message):
        encode_source(model, Source(SIZES, bad), tmp_path / "tokens", strict=True)
    assert not (tmp_path / "tokens").exists()


def test_size_cuts_the_centre_square(model, tmp_path):
    tokens = encode_source(model, Source([(20, 40), (16, 12)]), tmp_path / "tokens", size=8)
    assert tokens.array.shape == (2, 2, 2)
    assert tokens.index.size == (8, 8)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("stop", range(1, len(SIZES)))
def test_an_interrupted_run_ends_as_if_it_had_not_been(stop, batch_size, model, tmp_path):
    options = {"batch_size": batch_size, "settings": {"images": "photos"}}
    bad = [4, 7, 11]
    encode_source(model, Source(SIZES, bad), tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        encode_source(model, Source(SIZES, bad, stop), tmp_path / "tokens", **options)
    assert not (tmp_path / "tokens").exists()
    resumed = (tmp_path / "tokens.partial").exists()
    encode_source(model, Source(SIZES, bad), tmp_path / "tokens", **options, resume=resumed)
    whole, tokens = contents(tmp_path / "whole"), contents(tmp_path / "tokens")
    assert sorted(whole.pop("skipped.txt").splitlines()) == sorted(tokens.pop("skipped.txt").splitlines())
    assert tokens == whole


def test_a_run_interrupted_after_its_last_batch_is_finished(model, tmp_path, monkeypatch):
    def die(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TokenWriter, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            encode_source(model, Source(SIZES, bad=[11]), tmp_path / "tokens")
    tokens = encode_source(model, Source(SIZES, bad=[11]), tmp_path / "tokens", resume=True)
    assert len(tokens) == 10
    assert tokens.index.skipped == 2


def interrupt(model, out, stop=6):
    with pytest.raises(KeyboardInterrupt):
        encode_source(model, Source(SIZES, stop=stop), out)


def test_resuming_needs_the_same_images(model, tmp_path):
    interrupt(model, tmp_path / "tokens")
    other = Source(SIZES)
    other.name = lambda index: f"other-{index}.jpg"
    with pytest.raises(
        ValueError, match=r"the images are not those of .*partial: expected .*00000\.jpg', found 'other-0"
    ):
        encode_source(model, other, tmp_path / "tokens", resume=True)
    with pytest.raises(ValueError, match="images_found was 12, is 2"):
        encode_source(model, Source(SIZES[:2]), tmp_path / "tokens", resume=True)
    assert len(encode_source(model, Source(SIZES), tmp_path / "tokens", resume=True)) == 11


def test_resuming_needs_the_same_model_and_settings(model, tmp_path):
    interrupt(model, tmp_path / "tokens")
    with pytest.raises(ValueError, match="batch_size was 1, is 2"):
        encode_source(model, Source(SIZES), tmp_path / "tokens", batch_size=2, resume=True)
    other = make_model(seed=1)
    with pytest.raises(ValueError, match=f"begun with model {model_hash(model)}, this is {model_hash(other)}"):
        encode_source(other, Source(SIZES), tmp_path / "tokens", resume=True)


def test_progress_counts_from_where_it_resumes(model, tmp_path):
    interrupt(model, tmp_path / "tokens", stop=6)
    seen = []
    encode_source(model, Source(SIZES), tmp_path / "tokens", resume=True, progress=seen.append)
    written = seen[0]
    assert 0 < written < 6
    assert seen[1:] == [1] * (12 - written)


def test_worker_processes_change_nothing(model, tmp_path):
    encode_source(model, Source(SIZES, bad=[3]), tmp_path / "one", batch_size=2)
    encode_source(model, Source(SIZES, bad=[3]), tmp_path / "two", batch_size=2, workers=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_training_mode_changes_nothing(model, tmp_path):
    encode_source(model, Source(SIZES), tmp_path / "one")
    encode_source(model.train(), Source(SIZES), tmp_path / "two")
    assert model.training
    model.eval()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_plain_autoencoder_has_no_tokens(tmp_path):
    with pytest.raises(ValueError, match="it has no tokens"):
        encode_source(make_model(quantizer="none"), Source(SIZES), tmp_path / "tokens")
    assert list(tmp_path.iterdir()) == []


def test_batches_of_any_origin_are_encoded(model, tmp_path):
    batches = [ImageBatch(torch.full((2, 3, 8, 8), value, dtype=torch.uint8), ["a", "b\n"], []) for value in (0, 255)]
    tokens = encode_images(model, batches, tmp_path / "tokens", settings={"from": "a test"})
    assert list(tokens.names()) == ["a", "b\n"] * 2
    assert np.array_equal(tokens.array[2:], model.encode(torch.ones(2, 3, 8, 8)).numpy())
    assert json.loads((tmp_path / "tokens" / "index.json").read_text())["settings"] == {"from": "a test"}
    with pytest.raises(ValueError, match="exists; --overwrite"):
        encode_images(model, batches, tmp_path / "tokens")


def peak_memory(run):
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_batches(count):
    for number in range(count):
        images = torch.from_numpy(np.full((32, 3, 8, 8), number % 256, dtype=np.uint8))
        yield ImageBatch(images, [f"folder/{number}-{row}.jpg" for row in range(32)], [(f"bad-{number}", "broken")])


def test_memory_does_not_grow_with_the_number_of_images(model, tmp_path):
    encode_images(model, many_batches(2), tmp_path / "warm")
    few, many = (
        peak_memory(lambda count=count: encode_images(model, many_batches(count), tmp_path / str(count)))
        for count in (10, 400)
    )
    assert len(open_tokens(tmp_path / "400")) == 12_800  # their pixels alone are 2.4 MB
    assert many - few < 400_000


def test_memory_of_ragged_tokens_does_not_grow(tmp_path):
    def write(count):
        with TokenWriter(tmp_path / str(count), MODEL) as writer:
            for number in range(count):
                side = 1 + number % 3
                writer.write(np.zeros((64, side, side), dtype=np.int64), ["x" * 50] * 64, (4 * side, 4 * side))
            writer.finish()

    few, many = (peak_memory(lambda count=count: write(count)) for count in (10, 1000))
    assert open_tokens(tmp_path / "1000").index.shape is None
    assert many - few < 300_000  # one block of offsets; the offsets of 64,000 images are 512 kB, their names 3.2 MB
