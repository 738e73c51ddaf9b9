import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.functional import METRICS, block_search, blocks, highest_logit, nearest
from tests.functional.search_oracle import assert_nearest, integer_ties, randn


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
    monkeypatch.setattr(block_search, "EXPORTED_BLOCK_CODES", 100)
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
