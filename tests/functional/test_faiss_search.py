import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import faiss_search, nearest, search
from driftvq.functional.faiss_search import load_faiss
from tests.functional.search_oracle import assert_nearest, randn, scores_nk

SETTINGS = (3, 12345)


@pytest.fixture
def faiss():
    """faiss with settings of the user's own, which are put back after the test."""
    module = pytest.importorskip("faiss")
    torch.ones(10**6).sqrt()  # torch sets the number of threads itself when it first computes
    before = get_settings(module)
    set_settings(module, *SETTINGS)
    yield module
    set_settings(module, *before)


def get_settings(faiss):
    return faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold


def set_settings(faiss, threads, threshold):
    faiss.omp_set_num_threads(threads)
    faiss.cvar.distance_compute_blas_threshold = threshold


@pytest.mark.parametrize("fails", [False, True])
def test_settings_are_those_of_torch_within_a_search_and_restored_after_it(faiss, monkeypatch, fails):
    seen, knn = [], faiss.knn

    def spy(*args):
        seen.append(get_settings(faiss))
        if fails:
            raise RuntimeError("no memory")
        return knn(*args)

    monkeypatch.setattr(faiss, "knn", spy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    if fails:
        with pytest.raises(RuntimeError, match="no memory"):
            nearest(randn(4, 3), randn(5, 3))
    else:
        nearest(randn(4, 3), randn(5, 3))
    assert seen == [(2, 1)]
    assert get_settings(faiss) == SETTINGS


def test_settings_are_restored_after_searches_that_overlap(faiss, monkeypatch):
    """The second search begins within the first and ends after it."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    knn, seen = faiss.knn, {}

    def slow(*args):
        name = threading.current_thread().name
        if name == "first":
            first_is_in.set()
            assert second_is_in.wait(10)
        else:
            second_is_in.set()
            assert first_is_out.wait(10)
        seen[name] = faiss.cvar.distance_compute_blas_threshold
        return knn(*args)

    def search_once():
        torch.ones(10**6).sqrt()  # torch sets the number of threads of a thread when it first computes there
        threads = faiss.omp_get_max_threads()
        nearest(randn(4, 3), randn(5, 3))
        seen[threading.current_thread().name, "restored"] = faiss.omp_get_max_threads() == threads

    monkeypatch.setattr(faiss, "knn", slow)
    first, second = (threading.Thread(target=search_once, name=name) for name in ("first", "second"))
    first.start()
    assert first_is_in.wait(10)
    second.start()
    first.join(10)
    first_is_out.set()
    second.join(10)
    assert get_settings(faiss) == SETTINGS
    assert seen == {"first": 1, "second": 1, ("first", "restored"): True, ("second", "restored"): True}


def test_faiss_is_taken_where_it_can_be(faiss, monkeypatch):
    calls = []
    by_faiss = search.nearest_by_faiss
    monkeypatch.setattr(search, "nearest_by_faiss", lambda *args: calls.append(1) or by_faiss(*args))
    nearest(randn(4, 3), randn(5, 3))
    assert calls == [1]
    nearest(randn(4, 3).double(), randn(5, 3))
    nearest(randn(0, 3), randn(5, 3))
    assert calls == [1]


def test_without_faiss_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    load_faiss.cache_clear()
    try:
        assert load_faiss() is None
        x, codebook = randn(30, 3), randn(8, 3, seed=1)
        assert_nearest(nearest(x, codebook), x, codebook)
        with pytest.raises(ValueError, match=r"'faiss' cannot search torch\.float32 latents .* here: 'auto', 'blocks'"):
            nearest(x, codebook, way="faiss")
    finally:
        load_faiss.cache_clear()


@given(
    n=st.integers(1, 60),
    k=st.integers(1, 200),
    d=st.integers(1, 70),
    seed=st.integers(0, 2**31),
    offset=st.floats(-9, 9),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_faiss_and_blocks_agree(n, k, d, seed, offset):
    pytest.importorskip("faiss")
    x, codebook = randn(n, d, seed=seed) + offset, randn(k, d, seed=seed + 1)
    score_nk, rows = scores_nk(x, codebook, "l2"), np.arange(n)
    by_faiss, by_blocks = (score_nk[rows, nearest(x, codebook, way=way).numpy()] for way in ("faiss", "blocks"))
    np.testing.assert_allclose(by_faiss, by_blocks, rtol=1e-5)


def test_latents_too_far_for_faiss_are_searched_by_products(faiss, monkeypatch):
    """Beyond, |x|² swallows all that depends on the code, and every code would be as good as any other."""
    searched = []
    by_blocks = faiss_search.nearest_by_blocks
    monkeypatch.setattr(faiss_search, "nearest_by_blocks", lambda x, s: searched.append(len(x)) or by_blocks(x, s))
    x, codebook = randn(200, 24), randn(64, 24, seed=1)
    x[::4] *= 1e8
    right_n = scores_nk(x, codebook, "l2").argmin(axis=1)
    np.testing.assert_array_equal(nearest(x, codebook, way="faiss").numpy(), right_n)
    assert searched == [50]
