import numpy as np
import pytest

from driftvq.tokens.reader import open_array
from driftvq.tokens.writer import HEADER_BYTES, GrowingArray, npy_header


def grow(path, rows, **options):
    array = GrowingArray(path, "uint16", (3,), **options)
    for row in rows:
        array.append(np.array([row]))
    return array


def test_numpy_reads_what_was_appended(tmp_path):
    grow(tmp_path / "a.npy", [[1, 2, 3], [4, 5, 65535]]).finish()
    read = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert read.dtype == np.uint16
    assert read.tolist() == [[1, 2, 3], [4, 5, 65535]]


@pytest.mark.parametrize("shape", [(), (5,), (10**12, 2**31, 3, 4)])
def test_the_header_is_that_of_numpy(shape, tmp_path):
    header = npy_header(np.dtype("<u4"), shape)
    assert len(header) == HEADER_BYTES
    (tmp_path / "a.npy").write_bytes(header)
    with (tmp_path / "a.npy").open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == (shape, False, np.dtype("<u4"))


def test_what_was_not_committed_is_dropped(tmp_path):
    grow(tmp_path / "a.npy", [[1, 2, 3], [4, 5, 6]]).file.close()
    grow(tmp_path / "a.npy", [[7, 8, 9]], keep=6).finish()
    assert np.load(tmp_path / "a.npy").tolist() == [[1, 2, 3], [7, 8, 9]]


def test_a_file_shorter_than_committed_is_refused(tmp_path):
    grow(tmp_path / "a.npy", [[1, 2, 3]]).file.close()
    with pytest.raises(ValueError, match=r"a\.npy is truncated: 262 bytes, at least 268 were written"):
        grow(tmp_path / "a.npy", [], keep=12)


@pytest.mark.parametrize("keep", [0, 5, 100, HEADER_BYTES, HEADER_BYTES + 11])
def test_truncated_arrays_are_refused(keep, tmp_path):
    path = tmp_path / "a.npy"
    grow(path, [[1, 2, 3], [4, 5, 6]]).finish()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.npy is truncated or not an array"):
        open_array(path, "uint16", (2, 3))


def test_other_arrays_are_refused(tmp_path):
    grow(tmp_path / "a.npy", [[1, 2, 3]]).finish()
    with pytest.raises(ValueError, match=r"must be uint8 of shape \(any, 3\), got uint16 of shape \(1, 3\)"):
        open_array(tmp_path / "a.npy", "uint8", (None, 3))
    with pytest.raises(ValueError, match=r"must be uint16 of shape \(2, 3\)"):
        open_array(tmp_path / "a.npy", "uint16", (2, 3))
    with pytest.raises(ValueError, match=r"none\.npy is missing"):
        open_array(tmp_path / "none.npy", "uint8", (1,))


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="not an array"):
        open_array(tmp_path / "a.npy", "uint16", (1,))
