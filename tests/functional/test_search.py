import numpy as np
import pytest
import torch

from driftvq.functional import METRICS, WAYS, nearest, nearest_few, search
from tests.functional.search_oracle import assert_nearest, integer_ties, randn, scores_nk

PATHS = ["faiss", "blocks"]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    else:
        monkeypatch.setattr(search, "load_faiss", lambda: None)
    return request.param


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
def test_both_paths_agree_on_a_large_codebook(monkeypatch, metric):
    pytest.importorskip("faiss")
    x, codebook = randn(500, 16), randn(4099, 16, seed=1)
    by_faiss = nearest(x, codebook, metric)
    monkeypatch.setattr(search, "load_faiss", lambda: None)
    by_blocks = nearest(x, codebook, metric)
    assert (by_faiss == by_blocks).float().mean() > 0.99
    assert_nearest(by_faiss, x, codebook, metric)
    assert_nearest(by_blocks, x, codebook, metric)


@pytest.mark.parametrize("k", [2, 31, 257, 3001])
@pytest.mark.parametrize("d", [1, 3, 16, 33])
def test_of_codes_equally_near_one_wins_and_always_the_same(path, k, d):
    """Distances of whole numbers are exact, so that each of these ties is one."""
    x, codebook = integer_ties(24, k, d, seed=d)
    score_nk = scores_nk(x, codebook, "l2")
    found = nearest(x, codebook)
    np.testing.assert_array_equal(score_nk[np.arange(24), found.numpy()], score_nk.min(axis=1))
    assert torch.equal(nearest(x.clone(), codebook.clone()), found)


@pytest.mark.parametrize("d", [1, 8, 17, 64])
@pytest.mark.parametrize("k", [9, 1025])
def test_a_duplicated_code_is_found_at_one_of_its_places(path, k, d):
    codebook = randn(k, d)
    codebook[k // 2] = codebook[-1] = codebook[k // 3]
    x = codebook[-1] + 1e-2 * codebook.std() * randn(40, d, seed=1) / d**0.5
    here_n = scores_nk(x, codebook, "l2").argmin(axis=1) == k // 3
    assert here_n.any()
    found = nearest(x, codebook)
    assert set(found.numpy()[here_n]) <= {k // 3, k // 2, k - 1}
    assert torch.equal(nearest(x, codebook), found)


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


@pytest.mark.parametrize("metric", ["euclidean", "", "L2", None])
def test_unknown_metric(metric):
    with pytest.raises(ValueError, match=r"metric must be one of .*l2.*cosine.*got"):
        nearest(randn(3, 2), randn(4, 2), metric)


@pytest.mark.parametrize("way", ["cuda", "", None])
def test_unknown_way(way, monkeypatch):
    with pytest.raises(ValueError, match=r"way must be one of .*auto.*blocks.*got"):
        nearest(randn(3, 2), randn(4, 2), way=way)
    monkeypatch.setenv("DRIFTVQ_SEARCH", "cuda")
    with pytest.raises(ValueError, match=r"DRIFTVQ_SEARCH must be one of .*auto.*blocks.*got 'cuda'"):
        nearest(randn(3, 2), randn(4, 2))


@pytest.mark.parametrize("way", WAYS)
def test_the_environment_chooses_where_it_can(way, monkeypatch):
    pytest.importorskip("faiss")
    taken = []
    for name in ("blocks", "faiss"):
        monkeypatch.setattr(search, f"nearest_by_{name}", lambda x, s, name=name: taken.append(name) or x[:, 0].long())
    monkeypatch.setenv("DRIFTVQ_SEARCH", way)
    for dtype in (torch.float32, torch.float64):
        nearest(randn(3, 2, dtype=dtype), randn(4, 2))
    nearest(randn(3, 2), randn(4, 2), way="faiss")
    assert taken == ["blocks" if way == "blocks" else "faiss", "blocks", "faiss"]


@pytest.mark.parametrize(
    ("x_shape", "codebook_shape"), [((3, 2), (4, 3)), ((3,), (4, 3)), ((2, 3, 2), (4, 2)), ((3, 2), (2,))]
)
def test_wrong_shapes(x_shape, codebook_shape):
    with pytest.raises(ValueError, match=r"must share d, got \("):
        nearest(torch.zeros(x_shape), torch.zeros(codebook_shape))


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_nearest_few_come_in_order(count: int) -> None:
    torch.manual_seed(0)
    x, codes = 100 + torch.randn(70, 5), 100 + torch.randn(50, 5)
    expected = torch.cdist(x.double(), codes.double()).argsort(dim=1)[:, :count]
    assert torch.equal(nearest_few(x, codes, count), expected)
