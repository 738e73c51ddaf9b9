import json
import subprocess
import sys
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.tokens import TokenModel, TokenWriter, open_tokens
from driftvq.tokens.format import token_dtype
from tests.tokens.cases import MODEL

NAMES = st.text(alphabet=st.characters(), max_size=12) | st.sampled_from(
    ["", "a\nb", "a\r\n", "\udcff.jpg", "\u2028", '"\t']
)
BATCHES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.lists(NAMES, min_size=1, max_size=3)), min_size=1, max_size=6
)


def write(folder, batches, model=MODEL, seed=0):
    """Write batches of (height, width in pixels, names) of random tokens; return them image by image."""
    rng, written = np.random.default_rng(seed), []
    last = (model.indices_per_position,) if model.indices_per_position else ()
    with TokenWriter(folder, model) as writer:
        for height, width, names in batches:
            grid = (-(-height // model.downscale), -(-width // model.downscale))
            tokens = rng.integers(0, model.codebook_size, (len(names), *grid, *last))
            writer.write(tokens, names, (height, width))
            written += list(tokens)
        writer.finish()
    return written


@given(
    batches=BATCHES, codes=st.sampled_from([1, 256, 257, 65536, 65537, 2**32]), per_position=st.sampled_from([0, 1, 3])
)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(batches, codes, per_position):
    model = TokenModel("0f", codes, downscale=3, indices_per_position=per_position)
    with TemporaryDirectory() as folder:
        written = write(f"{folder}/tokens", batches, model)
        tokens = open_tokens(f"{folder}/tokens")
        names = [name for _, _, names in batches for name in names]
        sizes = [[height, width] for height, width, names in batches for _ in names]
        assert list(tokens.names()) == names
        assert tokens.sizes.tolist() == sizes
        assert len(tokens) == len(names)
        assert [list(rows) for rows in tokens.batches()] == split(range(len(names)), [len(n) for _, _, n in batches])
        assert tokens.index.model == model
        for number, want in enumerate(written):
            assert tokens[number].dtype == np.dtype(token_dtype(codes))
            assert np.array_equal(tokens[number], want)
            assert tuple(tokens.shapes[number]) == want.shape
        assert all(np.array_equal(got, want) for got, want in zip(tokens, written, strict=True))


def split(rows, counts):
    ends = np.cumsum(counts)
    return [list(rows[end - count : end]) for end, count in zip(ends, counts, strict=True)]


@pytest.mark.parametrize(
    ("codes", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (2**32, "uint32")],
)
def test_the_smallest_type_that_fits(codes, dtype):
    assert token_dtype(codes) == dtype
    assert np.iinfo(dtype).max >= codes - 1


@pytest.mark.parametrize("codes", [0, -1, 2**32 + 1])
def test_sizes_that_no_type_fits_are_refused(codes):
    with pytest.raises(ValueError, match="codebook_size must lie between 1 and 4294967296"):
        token_dtype(codes)


def test_equal_images_are_one_plain_array(tmp_path):
    written = write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (8, 12, ["c"])])
    plain = np.load(tmp_path / "tokens" / "tokens.npy", mmap_mode="r")
    assert plain.shape == (3, 2, 3)
    assert plain.dtype == np.uint16
    assert np.array_equal(plain, written)
    assert not (tmp_path / "tokens" / "offsets.npy").exists()
    assert json.loads((tmp_path / "tokens" / "index.json").read_text())["shape"] == [2, 3]


def test_images_of_other_sizes_are_read_with_numpy_as_documented(tmp_path):
    written = write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (20, 4, ["c"]), (7, 12, ["d"])])
    tokens, offsets, shapes = (
        np.load(tmp_path / "tokens" / f"{name}.npy", mmap_mode="r") for name in ("tokens", "offsets", "shapes")
    )
    for number, want in enumerate(written):
        assert np.array_equal(tokens[offsets[number] : offsets[number + 1]].reshape(shapes[number]), want)


def test_sizes_that_differ_below_the_grid_keep_one_array(tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a"]), (7, 11, ["b"])])
    tokens = open_tokens(tmp_path / "tokens")
    assert tokens.array.shape == (2, 2, 3)
    assert tokens.index.size is None
    assert tokens.sizes.tolist() == [[8, 12], [7, 11]]


def test_numbers_count_from_both_ends(tmp_path):
    written = write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (4, 4, ["c"])])
    tokens = open_tokens(tmp_path / "tokens")
    assert np.array_equal(tokens[-1], written[2])
    for number in (3, -4):
        with pytest.raises(IndexError, match=f"image {number} of 3"):
            tokens[number]


def test_reading_needs_no_torch(tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a"])])
    code = (
        "import sys; from driftvq.tokens import open_tokens\n"
        f"assert open_tokens({str(tmp_path / 'tokens')!r})[0].shape == (2, 3)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def edit_index(folder, **values):
    path = folder / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 2}, "format version 2; this driftvq reads up to 1: update it"),
        ({"version": "1"}, "format version '1'"),
        ({"format": "other"}, "its format must be 'driftvq-tokens'"),
        ({"complete": False}, "is incomplete: 3 images so far"),
        ({"dtype": "float64"}, "dtype must be uint16 for 1000 codes, got 'float64'"),
        ({"codebook_size": 10}, "dtype must be uint8"),
        ({"n": -1}, "counts must be whole numbers"),
        ({"n": 2}, r"must be int32 of shape \(2, 2\), got int32 of shape \(3, 2\)"),
        ({"batches": 1}, r"batches\.npy must be int32 of shape \(1\)"),
        ({"tokens": 5}, r"tokens\.npy must be uint16 of shape \(5\)"),
        ({"shape": [2, 3, 4]}, "expected 2 sizes of at least 1"),
        ({"shape": [2, 3]}, r"tokens\.npy must be uint16 of shape \(3, 2, 3\)"),
        ({"downscale": 5}, "does not fit the shapes"),
        ({"downscale": 0}, "counts must be whole numbers"),
        ({"settings": None}, "settings an object"),
    ],
)
def test_a_damaged_index_is_refused(values, message, tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (20, 4, ["c"])])
    edit_index(tmp_path / "tokens", **values)
    with pytest.raises(ValueError, match=message):
        open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"format": "driftvq-tokens", "version": 1}'])
def test_an_index_that_is_none_is_refused(text, tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a"])])
    (tmp_path / "tokens" / "index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json (is|holds)"):
        open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize("name", ["tokens.npy", "sizes.npy", "batches.npy", "shapes.npy", "offsets.npy"])
def test_truncated_arrays_are_refused(name, tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (20, 4, ["c"])])
    path = tmp_path / "tokens" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{name} is truncated"):
        open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("offsets.npy", np.array([0, 6, 13, 17], dtype=np.int64), "offsets.npy does not fit"),
        ("offsets.npy", np.array([-6, 0, 6, 11], dtype=np.int64), "offsets.npy does not fit"),
        ("shapes.npy", np.array([[-2, -3], [2, 3], [5, 1]], dtype=np.int32), "does not fit the shapes"),
        ("sizes.npy", np.array([[8, 12], [8, 13], [20, 4]], dtype=np.int32), "does not fit the shapes"),
        ("batches.npy", np.array([2, 2], dtype=np.int32), "must add up to 3 images"),
        ("batches.npy", np.array([3, 0], dtype=np.int32), "must add up to 3 images"),
    ],
)
def test_arrays_that_disagree_are_refused(name, values, message, tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a", "b"]), (20, 4, ["c"])])
    np.save(tmp_path / "tokens" / name, values)
    with pytest.raises(ValueError, match=message):
        open_tokens(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('"a"\n', "must have 2 names, got 1"),
        ('"a"\n"b"\n"c"\n', "got more"),
        ('"a"\nb\n', "not JSON"),
        ("1\n", "not a name"),
    ],
)
def test_wrong_names_are_refused(lines, message, tmp_path):
    write(tmp_path / "tokens", [(8, 12, ["a", "b"])])
    (tmp_path / "tokens" / "names.jsonl").write_text(lines)
    with pytest.raises(ValueError, match=message):
        list(open_tokens(tmp_path / "tokens").names())


def test_folders_without_tokens_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such token folder"):
        open_tokens(tmp_path / "none")
    with pytest.raises(ValueError, match=r"is not a token folder: no index\.json in it"):
        open_tokens(tmp_path)
