import sys
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from driftvq.functional import search, search_choice
from driftvq.functional.scoring import scoring
from tests.functional.search_oracle import randn

WAYS = {"triton": lambda x, s: "by triton", "blocks": lambda x, s: "by blocks"}


@pytest.fixture
def measured(monkeypatch):
    """Times that a test sets, and the ways that were measured."""
    times, calls = {"by triton": 1.0, "by blocks": 1.0}, []

    def milliseconds(call, device):
        calls.append(call())
        return times[calls[-1]]

    monkeypatch.setattr(search_choice, "_milliseconds", milliseconds)
    monkeypatch.setattr(search_choice, "_remembered", {})
    return times, calls


def choose(n=100, k=50, d=4, ways=WAYS):
    return search_choice.fastest(ways, randn(n, d), scoring(randn(k, d), "l2"))


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
