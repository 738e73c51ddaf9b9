import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.data.images import SUFFIXES, to_float, to_uint8
from driftvq.data.loader import ImageBatch, eval_batches
from driftvq.models.pretrained import model_hash
from driftvq.tokens import decode_tokens, encode_images, encode_source, open_tokens
from driftvq.tokens.decoding import place_image
from tests.tokens.cases import Source, load_png, make_model


def place_all(root, names):
    """The files of names, each made before the next is placed."""
    files = []
    for name in names:
        path = place_image(root, name, SUFFIXES)
        assert not path.exists()
        path.touch()
        files.append(path.relative_to(root).as_posix())
    return files


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.jpg", "a.png"),
        ("a/b/c.JPEG", "a/b/c.png"),
        ("a.png", "a.png"),
        ("archive.v2", "archive.v2.png"),
        ("plain", "plain.png"),
        ("../../etc/passwd", "etc/passwd.png"),
        ("/etc/passwd", "etc/passwd.png"),
        ("a/../../b.jpg", "a/b.png"),
        ("./a//b.jpg", "a/b.png"),
        ("..", "image.png"),
        ("", "image.png"),
        ("...", "image.png"),
        ("C:\\x\\y.jpg", "C__x_y.png"),
        ("a\nb\0c.jpg", "a_b_c.png"),
        ("\udcff.jpg", "_.png"),
        ("ünï.jpg", "ünï.png"),
        (".jpg", ".jpg.png"),
    ],
)
def test_names_become_files_below_the_folder(name, file, tmp_path):
    assert place_all(tmp_path, [name]) == [file]


def test_images_that_differ_by_their_suffix_keep_both(tmp_path):
    names = ["a.jpg", "a.png", "a.jpg.png", "a.webp", "../a.jpg"]
    assert place_all(tmp_path, names) == ["a.png", "a.png.png", "a.jpg.png", "a.webp.png", "a.jpg.2.png"]


def test_a_folder_does_not_take_the_place_of_an_image(tmp_path):
    assert place_all(tmp_path, ["a.jpg", "a.png/b.jpg"]) == ["a.png", "a.png_/b.png"]


def test_an_image_does_not_take_the_place_of_a_folder(tmp_path):
    assert place_all(tmp_path, ["a.png/b.jpg", "a.jpg"]) == ["a.png/b.png", "a.jpg.png"]


def test_long_names_are_cut_and_stay_apart(tmp_path):
    first, second = place_all(tmp_path, ["é" * 300 + "1.jpg", "é" * 300 + "2.jpg"])
    assert first != second
    assert max(len(file.encode()) for file in (first, second)) < 220
    assert first.endswith(".png")
    assert not first.endswith(".jpg.png")


@pytest.mark.parametrize("name", ["n" * 10_000 + ".jpg", "d/" * 5_000 + "x.jpg", ("n" * 190 + "/") * 50 + "x.jpg"])
def test_a_name_of_ten_thousand_characters_has_a_place(name, tmp_path):
    first, second = place_all(tmp_path, ["1" + name, "2" + name])
    assert first != second
    assert max(len(file.encode()) for file in (first, second)) < 850
    assert first[0] == "1"


def test_images_of_one_name_are_not_looked_for_one_by_one(tmp_path, monkeypatch):
    looked, exists = [], Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: looked.append(path) or exists(path))
    files = place_all(tmp_path, ["a/b.jpg"] * 500)
    assert files == ["a/b.png", "a/b.jpg.png", *(f"a/b.jpg.{number}.png" for number in range(2, 500))]
    assert len(looked) < 500 * 25


PIECES = st.sampled_from(["..", ".", "", "a", "a.jpg", "a.png", "~", "C:", "\\", "..\\..", " ", "..."])
NAMES = st.lists(PIECES | st.text(max_size=4), min_size=1, max_size=5).map("/".join)


@given(st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_name_leads_out_of_the_folder_or_onto_another(names):
    with TemporaryDirectory() as folder:
        root = Path(folder) / "inside" / "root"
        root.mkdir(parents=True)
        files = place_all(root, names)
        assert len(set(files)) == len(names)
        assert all((root / file).resolve().is_relative_to(root.resolve()) for file in files)
        assert [path for path in Path(folder).rglob("*") if not path.is_relative_to(root)] == [Path(folder) / "inside"]
    with TemporaryDirectory() as again:
        assert place_all(Path(again), names) == files


SIZES = [(16, 16)] * 5 + [(16, 20), (13, 18), (13, 18), (16, 16), (16, 16)]


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"network": "taming"},
        {"network": "paper", "codebook_size": 300},
        {"quantizer": "residual_vq", "quantizer_options": {"num_quantizers": 2}},
        {"quantizer": "grouped_vq", "quantizer_options": {"groups": 2}},
        {"quantizer": "trans_vq"},
    ],
)
def test_decoding_gives_what_reconstruct_gives_bit_for_bit(config, batch_size, tmp_path):
    model = make_model(**config)
    source = Source(SIZES, bad=[2])
    tokens = encode_source(model, source, tmp_path / "tokens", batch_size=batch_size)
    assert decode_tokens(model, tokens, tmp_path / "out") == 0
    count = 0
    for images, names, _ in eval_batches(source, size=None, batch_size=batch_size):
        wanted = to_uint8(model.reconstruct(to_float(images)))
        for name, image in zip(names, wanted, strict=True):
            got = load_png(tmp_path / "out" / name.replace(".jpg", ".png"))
            assert np.array_equal(got, image.permute(1, 2, 0).numpy())
            count += 1
    assert count == len(tokens) == len(SIZES) - 1


def encode_names(model, folder, names):
    images = torch.arange(len(names) * 192).remainder(256).to(torch.uint8).reshape(-1, 3, 8, 8)
    return encode_images(model, [ImageBatch(images, names, [])], folder)


def test_images_keep_their_folders_and_never_meet(model, tmp_path):
    names = ["a/b.jpg", "a/b.png", "c.webp", "plain"]
    tokens = encode_names(model, tmp_path / "tokens", names)
    assert decode_tokens(model, tokens, tmp_path / "out") == 1
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert files == {"a/b.png", "a/b.png.png", "c.png", "plain.png", "renamed.txt"}
    assert json.loads((tmp_path / "out" / "renamed.txt").read_text()) == ["a/b.png", "a/b.png.png"]
    wanted = to_uint8(model.decode(torch.from_numpy(tokens.array.astype(np.int64))))
    assert np.array_equal(load_png(tmp_path / "out" / "a" / "b.png.png"), wanted[1].permute(1, 2, 0).numpy())


def test_nothing_is_written_outside(model, tmp_path):
    inside = tmp_path / "x" / "y"
    names = ["../../up.jpg", str(tmp_path / "absolute.jpg"), "..", "a/../../../b.jpg", "renamed.txt/c.jpg"]
    tokens = encode_names(model, tmp_path / "tokens", names)
    assert decode_tokens(model, tokens, inside / "out") == len(names)
    assert {path.name for path in tmp_path.iterdir()} == {"tokens", "x"}
    assert [path.name for path in inside.iterdir()] == ["out"]
    assert len(list((inside / "out").rglob("*.png"))) == len(names)
    listed = [json.loads(line) for line in (inside / "out" / "renamed.txt").read_text().splitlines()]
    assert [name for name, _ in listed] == names
    assert all((inside / "out" / file).is_file() for _, file in listed)


def test_tokens_of_another_model_are_refused_by_both_names(model, tmp_path):
    encode_names(model, tmp_path / "tokens", ["a.jpg"])
    other = make_model(seed=1)
    with pytest.raises(ValueError, match=f"made by {model_hash(model)}, this model is {model_hash(other)}"):
        decode_tokens(other, tmp_path / "tokens", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_indices_out_of_range_are_refused_and_leave_nothing(model, tmp_path):
    encode_names(model, tmp_path / "tokens", ["a.jpg", "b.jpg"])
    array = np.load(tmp_path / "tokens" / "tokens.npy")
    array[1, 0, 0] = 64
    np.save(tmp_path / "tokens" / "tokens.npy", array)
    with pytest.raises(ValueError, match="indices must lie between 0 and 63, got 64"):
        decode_tokens(model, tmp_path / "tokens", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"downscale": 2}, "does not fit"),
        ({"codebook_size": 65}, "does not fit its model: it says .*=65.* the model .*=64"),
    ],
)
def test_an_index_that_is_not_of_the_model_is_refused(values, message, model, tmp_path):
    encode_names(model, tmp_path / "tokens", ["a.jpg"])
    path = tmp_path / "tokens" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with pytest.raises(ValueError, match=message):
        decode_tokens(model, tmp_path / "tokens", tmp_path / "out")


def test_a_batch_of_two_sizes_is_refused(model, tmp_path):
    encode_source(model, Source([(16, 16), (15, 16)]), tmp_path / "tokens")
    path = tmp_path / "tokens" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "batches": 1}))
    np.save(tmp_path / "tokens" / "batches.npy", np.array([2], dtype=np.int32))
    with pytest.raises(ValueError, match="images 0 to 1 must have one size"):
        decode_tokens(model, tmp_path / "tokens", tmp_path / "out")


def test_missing_names_are_refused(model, tmp_path):
    encode_names(model, tmp_path / "tokens", ["a.jpg", "b.jpg"])
    for lines in ('"a.jpg"\n', '"a.jpg"\n"b.jpg"\n"c.jpg"\n'):
        (tmp_path / "tokens" / "names.jsonl").write_text(lines)
        with pytest.raises(ValueError, match="must have 2 names"):
            decode_tokens(model, tmp_path / "tokens", tmp_path / "out")
        assert not list(tmp_path.glob("out*"))


def test_existing_images_are_not_touched(model, tmp_path):
    encode_names(model, tmp_path / "tokens", ["a.jpg"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.png").write_text("mine")
    with pytest.raises(ValueError, match="out exists and is not an empty folder"):
        decode_tokens(model, tmp_path / "tokens", tmp_path / "out")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]
    (tmp_path / "killed.partial").mkdir()
    with pytest.raises(ValueError, match=r"killed\.partial is left from a run that was killed"):
        decode_tokens(model, tmp_path / "tokens", tmp_path / "killed")
    (tmp_path / "empty").mkdir()
    decode_tokens(model, tmp_path / "tokens", tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["a.png"]


def test_an_interrupted_run_leaves_nothing(model, tmp_path):
    tokens = encode_source(model, Source(SIZES), tmp_path / "tokens")

    def stop(count):
        seen.append(count)
        if sum(seen) == 3:
            raise KeyboardInterrupt

    seen = []

    with pytest.raises(KeyboardInterrupt):
        decode_tokens(model, tokens, tmp_path / "out", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_progress_counts_images(model, tmp_path):
    encode_source(model, Source(SIZES), tmp_path / "tokens", batch_size=4)
    seen = []
    decode_tokens(model, open_tokens(tmp_path / "tokens"), tmp_path / "out", progress=seen.append)
    assert seen == [0, 4, 1, 1, 2, 2]
