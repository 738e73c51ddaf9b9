import math
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from driftvq.functional import METRICS, blocks, highest_logit, nearest, search
from driftvq.functional.search import load_faiss, scoring
from tests.functional.search_oracle import assert_nearest, integer_ties, randn, scores_nk


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("elements", [1, 1000, 33 * 77])
def test_nearest_over_several_blocks(monkeypatch, metric, elements):
    x, codebook = randn(150, 6), randn(77, 6, seed=1)
    whole = nearest(x, codebook, metric, way="blocks")
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
    assert len(list(blocks.row_blocks(150, 77, x.device))) > 1
    in_blocks = nearest(x, codebook, metric, way="blocks")
    assert_nearest(in_blocks, x, codebook, metric)
    assert torch.equal(in_blocks, whole)


def test_more_codes_than_a_block_holds(monkeypatch):
    monkeypatch.setattr(blocks, "CPU_BLOCK_ELEMENTS", 100)
    x, codebook = randn(100, 4), randn(1000, 4, seed=1)
    assert_nearest(nearest(x, codebook, way="blocks"), x, codebook)


@given(rows=st.integers(0, 300), codes=st.integers(0, 200), elements=st.integers(1, 10_000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_row_blocks_cover_every_row_once(rows, codes, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CPU_BLOCK_ELEMENTS", elements)
        slices = list(blocks.row_blocks(rows, codes, torch.device("cpu")))
    covered = [row for part in slices for row in range(part.start, part.stop)]
    assert covered == list(range(rows))
    assert all(part.stop - part.start <= max(blocks.MIN_BLOCK_ROWS, elements // max(codes, 1)) for part in slices)


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


def test_highest_logit_takes_one_of_the_highest():
    x, weight = integer_ties(50, 40, 3, seed=0)
    bias = torch.zeros(40)
    logits_nk = x.numpy() @ weight.numpy().T
    found = highest_logit(x, weight, bias)
    np.testing.assert_array_equal(logits_nk[np.arange(50), found.numpy()], logits_nk.max(axis=1))
    assert torch.equal(highest_logit(x, weight, bias), found)


def test_highest_logit_has_no_gradient():
    x, weight, bias = (t.requires_grad_() for t in (randn(4, 3), randn(5, 3), randn(5)))
    assert not highest_logit(x, weight, bias).requires_grad


class Search(torch.nn.Module):
    def __init__(self, codebook, metric):
        super().__init__()
        self.metric = metric
        self.register_buffer("codebook", codebook)

    def forward(self, x):
        return nearest(x, self.codebook, self.metric), highest_logit(x, self.codebook, self.codebook[:, 0])


@pytest.mark.parametrize("k", [100, 330])
@pytest.mark.parametrize("metric", METRICS)
def test_an_exported_search_walks_blocks_of_codes(monkeypatch, k, metric):
    monkeypatch.setattr(search, "EXPORTED_BLOCK_CODES", 100)
    module, x = Search(randn(k, 4, seed=1), metric), randn(60, 4)
    program = torch.export.export(module, (x[:7],), dynamic_shapes={"x": {0: torch.export.Dim("n")}}, strict=True)
    largest = max(math.prod(s for s in node.meta["val"].shape if isinstance(s, int)) for node in scores(program))
    assert largest <= 100
    for found, right in zip(program.module()(x), module(x), strict=True):
        assert torch.equal(found, right)


def scores(program):
    """All products in a graph and in the graphs of its loops."""
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.target == torch.ops.aten.addmm.default]
    assert len(nodes) == 2
    return nodes


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
    by_blocks = search.nearest_by_blocks
    monkeypatch.setattr(search, "nearest_by_blocks", lambda x, s: searched.append(len(x)) or by_blocks(x, s))
    x, codebook = randn(200, 24), randn(64, 24, seed=1)
    x[::4] *= 1e8
    right_n = scores_nk(x, codebook, "l2").argmin(axis=1)
    np.testing.assert_array_equal(nearest(x, codebook, way="faiss").numpy(), right_n)
    assert searched == [50]


WAYS = {"triton": lambda x, s: "by triton", "blocks": lambda x, s: "by blocks"}


@pytest.fixture
def measured(monkeypatch):
    """Times that a test sets, and the ways that were measured."""
    times, calls = {"by triton": 1.0, "by blocks": 1.0}, []

    def milliseconds(call, device):
        calls.append(call())
        return times[calls[-1]]

    monkeypatch.setattr(search, "_milliseconds", milliseconds)
    monkeypatch.setattr(search, "_remembered", {})
    return times, calls


def choose(n=100, k=50, d=4, ways=WAYS):
    return search.fastest(ways, randn(n, d), scoring(randn(k, d), "l2"))


@pytest.mark.parametrize(("blocks", "wins"), [(0.5, "blocks"), (0.89, "blocks"), (0.95, "triton"), (2.0, "triton")])
def test_the_fastest_wins_and_near_draws_go_to_the_first(measured, blocks, wins):
    measured[0]["by blocks"] = blocks
    assert choose() == wins


def test_a_shape_class_is_measured_once(measured):
    times, calls = measured
    assert choose(n=100) == "triton"
    times["by blocks"] = 0.1
    assert choose(n=128, k=64) == "triton"
    assert calls == ["by triton", "by blocks"]
    for other in ({"n": 129}, {"k": 65}, {"d": 5}):
        assert choose(**other) == "blocks"
    assert len(calls) == 8


def test_one_way_is_not_measured(measured):
    assert choose(ways={"blocks": WAYS["blocks"]}) == "blocks"
    assert measured[1] == []


def test_deterministic_algorithms_take_a_fixed_way(measured):
    measured[0]["by blocks"] = 0.1
    torch.use_deterministic_algorithms(True)
    try:
        assert choose() == "triton"
    finally:
        torch.use_deterministic_algorithms(False)
    assert measured[1] == []


def test_products_in_tf32_are_not_searched_with(measured):
    measured[0]["by blocks"] = 0.1
    assert choose() == "blocks"
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert choose() == "triton"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_the_present_setting_of_tf32_is_asked_alone(measured):
    """To ask for the former one is an error once the present one was set."""
    measured[0]["by blocks"] = 0.1
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert choose() == "triton"
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert choose() == "blocks"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_ways_by_device(monkeypatch):
    fused = SimpleNamespace(MAX_DIMS=256, nearest_by_triton=WAYS["triton"])
    monkeypatch.setattr(search, "_triton_search", lambda: fused)
    monkeypatch.setattr(search, "_triton_runs_on", lambda device: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(search, "load_faiss", lambda: fused)
    with FakeTensorMode():
        found = {
            (device, dims, dtype): list(search.available_ways(torch.empty(4, dims, dtype=dtype, device=device)))
            for device in ("cpu", "cuda", "xpu")
            for dims, dtype in ((256, torch.float32), (257, torch.float32), (4, torch.float64))
        }
    assert found == {
        ("cpu", 256, torch.float32): ["faiss", "blocks"],
        ("cpu", 257, torch.float32): ["faiss", "blocks"],
        ("cpu", 4, torch.float64): ["blocks"],
        ("cuda", 256, torch.float32): ["triton", "blocks"],
        ("cuda", 257, torch.float32): ["blocks"],
        ("cuda", 4, torch.float64): ["blocks"],
        ("xpu", 256, torch.float32): ["blocks"],
        ("xpu", 257, torch.float32): ["blocks"],
        ("xpu", 4, torch.float64): ["blocks"],
    }


def test_a_triton_that_cannot_compile_is_named_once_and_not_used(monkeypatch):
    def nearest_by_triton(x, scoring):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(search, "_triton_search", lambda: SimpleNamespace(nearest_by_triton=nearest_by_triton))
    device = torch.device("cpu")
    search._triton_runs_on.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"no fused search on cpu, searching by blocks: .*no C compiler") as caught:
        assert [search._triton_runs_on(device) for _ in range(3)] == [False] * 3
    assert len(caught) == 1
    search._triton_runs_on.cache_clear()


def test_triton_is_no_dependency(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "driftvq.functional.triton_search", raising=False)
    assert search._triton_search.__wrapped__() is None
