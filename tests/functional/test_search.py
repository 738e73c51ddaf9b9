import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import METRICS, blocks, highest_logit, nearest, search

PATHS = ["faiss", "blocks"]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    else:
        monkeypatch.setattr(search, "_faiss", lambda: None)
    return request.param


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def scores_nk(x_nd, codebook_kd, metric):
    """Squared distances, or 1 - cosine similarity, in float64."""
    x, c = x_nd.double().numpy(), codebook_kd.double().numpy()
    if metric == "cosine":
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        c = c / np.maximum(np.linalg.norm(c, axis=1, keepdims=True), 1e-12)
    return np.stack([np.square(row - c).sum(axis=1) for row in x]) if len(x) else np.zeros((0, len(c)))


def assert_nearest(indices_n, x_nd, codebook_kd, metric="l2", rtol=1e-5):
    assert indices_n.dtype == torch.int64
    assert indices_n.shape == (len(x_nd),)
    score_nk = scores_nk(x_nd, codebook_kd, metric)
    if len(score_nk) == 0:
        return
    chosen_n = np.take_along_axis(score_nk, indices_n.numpy()[:, None], axis=1)[:, 0]
    scale = np.median(score_nk)
    np.testing.assert_allclose(chosen_n, score_nk.min(axis=1), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("n", "k", "d"),
    [
        (0, 5, 3),
        (1, 1, 1),
        (1, 7, 1),
        (200, 1, 4),
        (200, 33, 1),
        (100, 500, 3),
        (64, 129, 17),
        (50, 1000, 64),
        (9, 40, 300),
    ],
)
def test_nearest_agrees_with_brute_force(path, metric, n, k, d):
    x, codebook = randn(n, d), randn(k, d, seed=1)
    assert_nearest(nearest(x, codebook, metric), x, codebook, metric)


def test_nearest_equals_the_brute_force_indices_of_separated_codes(path):
    codebook = randn(300, 5)
    picks = torch.randint(300, (400,), generator=torch.Generator().manual_seed(1))
    x = codebook[picks] + 1e-3 * randn(400, 5, seed=2)
    assert torch.equal(nearest(x, codebook), picks)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("elements", [1, 1000, 33 * 77])
def test_nearest_over_several_blocks(monkeypatch, metric, elements):
    x, codebook = randn(150, 6), randn(77, 6, seed=1)
    monkeypatch.setattr(search, "_faiss", lambda: None)
    whole = nearest(x, codebook, metric)
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    assert len(list(blocks.row_blocks(150, 77, x.device))) > 1
    in_blocks = nearest(x, codebook, metric)
    assert_nearest(in_blocks, x, codebook, metric)
    assert torch.equal(in_blocks, whole)


def test_more_codes_than_a_block_holds(monkeypatch):
    monkeypatch.setattr(search, "_faiss", lambda: None)
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 100)
    x, codebook = randn(100, 4), randn(1000, 4, seed=1)
    assert_nearest(nearest(x, codebook), x, codebook)


@given(rows=st.integers(0, 300), codes=st.integers(0, 200), elements=st.integers(1, 10_000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_row_blocks_cover_every_row_once(rows, codes, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
        slices = list(blocks.row_blocks(rows, codes, torch.device("cpu")))
    covered = [row for part in slices for row in range(part.start, part.stop)]
    assert covered == list(range(rows))
    assert all(part.stop - part.start <= max(blocks.MIN_BLOCK_ROWS, elements // max(codes, 1)) for part in slices)


@given(
    n=st.integers(1, 60),
    k=st.integers(1, 200),
    d=st.integers(1, 70),
    seed=st.integers(0, 2**31),
    offset=st.floats(-9, 9),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_both_paths_agree(n, k, d, seed, offset):
    faiss = pytest.importorskip("faiss")
    x, codebook = randn(n, d, seed=seed) + offset, randn(k, d, seed=seed + 1)
    by_faiss = search._nearest_by_faiss(faiss, x, codebook).numpy()
    by_blocks = search._nearest_by_blocks(x, codebook).numpy()
    score_nk = scores_nk(x, codebook, "l2")
    rows = np.arange(n)
    np.testing.assert_allclose(score_nk[rows, by_faiss], score_nk[rows, by_blocks], rtol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_both_paths_agree_on_a_large_codebook(monkeypatch, metric):
    pytest.importorskip("faiss")
    x, codebook = randn(500, 16), randn(4099, 16, seed=1)
    by_faiss = nearest(x, codebook, metric)
    monkeypatch.setattr(search, "_faiss", lambda: None)
    by_blocks = nearest(x, codebook, metric)
    assert (by_faiss == by_blocks).float().mean() > 0.99
    assert_nearest(by_faiss, x, codebook, metric)
    assert_nearest(by_blocks, x, codebook, metric)


def test_the_faiss_path_is_taken_where_it_can_be(monkeypatch):
    pytest.importorskip("faiss")
    calls = []
    by_faiss = search._nearest_by_faiss
    monkeypatch.setattr(search, "_nearest_by_faiss", lambda *args: calls.append(1) or by_faiss(*args))
    nearest(randn(4, 3), randn(5, 3))
    assert calls == [1]
    nearest(randn(4, 3).double(), randn(5, 3))
    nearest(randn(0, 3), randn(5, 3))
    assert calls == [1]


def integer_ties(n, k, d, seed):
    """Small whole numbers, so that distances are exact in float32 whatever the order of summation, and ties abound."""
    generator = torch.Generator().manual_seed(seed)
    codebook = torch.randint(-3, 4, (k, d), generator=generator).float()
    codebook = codebook[torch.minimum(torch.randint(k, (k,), generator=generator), torch.arange(k))]
    return torch.randint(-3, 4, (n, d), generator=generator).float(), codebook


@pytest.mark.parametrize("by", PATHS)
@pytest.mark.parametrize("k", [2, 7, 9, 16, 31, 65, 257, 1025, 3001])
def test_exact_ties_go_to_the_lowest_index(by, k):
    faiss = pytest.importorskip("faiss") if by == "faiss" else None
    for d in (1, 2, 3, 4, 8, 15, 16, 17, 33, 64, 70):
        x, codebook = integer_ties(24, k, d, seed=d)
        lowest_n = scores_nk(x, codebook, "l2").argmin(axis=1)
        found = search._nearest_by_faiss(faiss, x, codebook) if faiss else search._nearest_by_blocks(x, codebook)
        np.testing.assert_array_equal(found.numpy(), lowest_n)


@pytest.mark.parametrize("d", [1, 3, 8, 16, 17, 64])
@pytest.mark.parametrize("k", [9, 65, 1025])
def test_a_duplicated_code_is_found_at_its_lowest_place(path, k, d):
    codebook = randn(k, d)
    codebook[k // 2] = codebook[-1] = codebook[k // 3]
    x = codebook[-1] + 1e-2 * codebook.std() * randn(40, d, seed=1) / d**0.5
    here_n = scores_nk(x, codebook, "l2").argmin(axis=1) == k // 3
    assert here_n.any()
    assert set(nearest(x, codebook).numpy()[here_n]) == {k // 3}


@pytest.mark.parametrize("d", [1, 8, 32])
def test_latents_far_from_the_origin(path, d):
    x, codebook = randn(200, d) + 1e3, randn(64, d, seed=1) + 1e3
    found_n = nearest(x, codebook).numpy()
    score_nk = scores_nk(x, codebook, "l2")
    chosen_n = score_nk[np.arange(200), found_n]
    np.testing.assert_allclose(chosen_n, score_nk.min(axis=1), rtol=1e-4, atol=1e-5)
    assert (found_n == score_nk.argmin(axis=1)).mean() > 0.99


def test_half_precision_is_searched_in_float32(path):
    x, codebook = randn(100, 8).bfloat16(), randn(300, 8, seed=1)
    assert torch.equal(nearest(x, codebook), nearest(x.float(), codebook))
    assert_nearest(nearest(x, codebook.bfloat16()), x, codebook.bfloat16())


def test_double_precision_stays_double(path):
    codebook = torch.tensor([[1.0], [1.0 + 1e-12]], dtype=torch.float64)
    near, far = codebook[:1], codebook[1:]
    assert nearest(far, codebook).tolist() == [1]
    assert nearest(near, codebook).tolist() == [0]


def test_non_contiguous_input(path):
    wide, tall = randn(60, 20), randn(11, 90, seed=1)
    x, codebook = wide[:, ::2][:, :9], tall[1:10].t()
    assert not x.is_contiguous()
    assert not codebook.is_contiguous()
    assert torch.equal(nearest(x, codebook), nearest(x.contiguous(), codebook.contiguous()))
    assert_nearest(nearest(x, codebook), x, codebook)


def test_input_is_left_alone_and_no_gradient_flows(path):
    x, codebook = randn(20, 4).requires_grad_(), randn(9, 4, seed=1).requires_grad_()
    x_before, codebook_before = x.detach().clone(), codebook.detach().clone()
    indices = nearest(x, codebook)
    assert not indices.requires_grad
    assert torch.equal(x, x_before)
    assert torch.equal(codebook, codebook_before)


def test_zero_vectors_have_a_nearest_code_by_cosine(path):
    indices = nearest(torch.zeros(3, 4), torch.cat([randn(5, 4), torch.zeros(1, 4)]), "cosine")
    assert ((indices >= 0) & (indices < 6)).all()


def test_cosine_ignores_length(path):
    codebook, x = randn(50, 6), randn(80, 6, seed=1)
    scaled = codebook * torch.rand(50, 1, generator=torch.Generator().manual_seed(2)).add(0.1)
    assert torch.equal(nearest(x, scaled, "cosine"), nearest(7 * x, codebook, "cosine"))


def test_nan_latents_get_a_valid_index(path):
    x = torch.full((3, 4), torch.nan)
    indices = nearest(x, randn(5, 4))
    assert ((indices >= 0) & (indices < 5)).all()


@pytest.mark.parametrize("fails", [False, True])
def test_faiss_settings_are_restored(monkeypatch, fails):
    faiss = pytest.importorskip("faiss")
    threads, threshold = faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold
    seen = []
    knn = faiss.knn

    def spy(*args):
        seen.append((faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold))
        if fails:
            raise RuntimeError("no memory")
        return knn(*args)

    monkeypatch.setattr(faiss, "knn", spy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    try:
        faiss.omp_set_num_threads(3)
        faiss.cvar.distance_compute_blas_threshold = 12345
        if fails:
            with pytest.raises(RuntimeError, match="no memory"):
                nearest(randn(4, 3), randn(5, 3))
        else:
            nearest(randn(4, 3), randn(5, 3))
        assert faiss.omp_get_max_threads() == 3
        assert faiss.cvar.distance_compute_blas_threshold == 12345
    finally:
        faiss.omp_set_num_threads(threads)
        faiss.cvar.distance_compute_blas_threshold = threshold
    assert seen == [(2, 1)]


def test_without_faiss_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    search._faiss.cache_clear()
    try:
        assert search._faiss() is None
        x, codebook = randn(30, 3), randn(8, 3, seed=1)
        assert_nearest(nearest(x, codebook), x, codebook)
    finally:
        search._faiss.cache_clear()


@pytest.mark.parametrize("metric", ["euclidean", "", "L2", None])
def test_unknown_metric(metric):
    with pytest.raises(ValueError, match=r"metric must be one of .*l2.*cosine.*got"):
        nearest(randn(3, 2), randn(4, 2), metric)


@pytest.mark.parametrize(
    ("x_shape", "codebook_shape"), [((3, 2), (4, 3)), ((3,), (4, 3)), ((2, 3, 2), (4, 2)), ((3, 2), (2,))]
)
def test_wrong_shapes(x_shape, codebook_shape):
    with pytest.raises(ValueError, match=r"must share d, got \("):
        nearest(torch.zeros(x_shape), torch.zeros(codebook_shape))


@pytest.mark.parametrize(("n", "k", "d"), [(0, 4, 3), (1, 1, 1), (130, 70, 5), (40, 600, 64)])
@pytest.mark.parametrize("elements", [1, 2**21])
def test_highest_logit_agrees_with_numpy(monkeypatch, n, k, d, elements):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    x, weight, bias = randn(n, d), randn(k, d, seed=1), randn(k, seed=2)
    found = highest_logit(x, weight, bias)
    logits_nk = x.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    assert found.dtype == torch.int64
    assert found.shape == (n,)
    chosen_n = logits_nk[np.arange(n), found.numpy()]
    np.testing.assert_allclose(chosen_n, logits_nk.max(axis=1, initial=-np.inf), rtol=1e-5, atol=1e-5)


def test_highest_logit_ties_go_to_the_lowest_index():
    x, weight = integer_ties(50, 40, 3, seed=0)
    bias = torch.zeros(40)
    logits_nk = x.numpy() @ weight.numpy().T
    np.testing.assert_array_equal(highest_logit(x, weight, bias).numpy(), logits_nk.argmax(axis=1))


def test_highest_logit_has_no_gradient():
    x, weight, bias = (t.requires_grad_() for t in (randn(4, 3), randn(5, 3), randn(5)))
    assert not highest_logit(x, weight, bias).requires_grad
