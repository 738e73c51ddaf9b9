"""The search is right at every scale and offset of latents and codes; float64 tells what is right."""

import numpy as np
import pytest
import torch

from driftvq.functional import METRICS, nearest
from driftvq.functional.search import scoring
from tests.functional.search_oracle import randn, scores_nk

WAYS = ["blocks", "faiss"]
SCALES = [1e-30, 1e-18, 1e-9, 1.0, 1e9, 1e18, 1e30]


@pytest.fixture(params=WAYS)
def way(request):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return request.param


def winners(x, codebook, metric="l2"):
    """The right codes, and where the second best is clearly worse."""
    score_nk = scores_nk(x, codebook, metric)
    first_n, second_n = np.partition(score_nk, 1, axis=1)[:, :2].T
    return score_nk.argmin(axis=1), second_n > first_n * (1 + 1e-4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("d", [2, 64])
def test_winners_do_not_depend_on_the_scale(way, metric, scale, d):
    x, codebook = scale * randn(100, d), scale * randn(50, d, seed=1)
    right_n, clear_n = winners(x.double() / scale, codebook.double() / scale, metric)
    assert clear_n.mean() > 0.95
    np.testing.assert_array_equal(nearest(x, codebook, metric, way).numpy()[clear_n], right_n[clear_n])


@pytest.mark.parametrize("power", [-60, -7, 60])
def test_a_power_of_two_changes_nothing_at_all(way, power):
    x, codebook = randn(300, 5), randn(40, 5, seed=1)
    codebook[7] = codebook[31]
    assert torch.equal(nearest(x * 2.0**power, codebook * 2.0**power, way=way), nearest(x, codebook, way=way))


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6, 1e10])
def test_latents_of_another_scale_than_the_codes(way, scale):
    """Codes at the origin's side: latents far out differ by direction alone, latents close in all have one winner."""
    x, codebook = scale * randn(200, 3), randn(30, 3, seed=1)
    score_nk = scores_nk(x, codebook, "l2")
    chosen_n = score_nk[np.arange(200), nearest(x, codebook, way=way).numpy()]
    np.testing.assert_allclose(chosen_n, score_nk.min(axis=1), rtol=1e-5)
    if scale >= 1e6:
        assert (chosen_n == score_nk.min(axis=1)).mean() > 0.99


@pytest.mark.parametrize("metric", METRICS)
def test_all_scales_in_one_batch(way, metric):
    scale_n1 = torch.logspace(-18, 18, 145, dtype=torch.float64)[:, None]
    x, codebook = (scale_n1 * randn(145, 6)).float(), randn(30, 6, seed=1)
    exact = scores_nk(x.double() / scale_n1 if metric == "cosine" else x, codebook, metric)
    chosen_n = exact[np.arange(145), nearest(x, codebook, metric, way).numpy()]
    np.testing.assert_allclose(chosen_n, exact.min(axis=1), rtol=1e-5, atol=1e-6 if metric == "cosine" else 0)


def test_one_lost_code_spoils_no_search(way):
    """A mean of the codes as the origin would be far away too, and leave no digits for the others."""
    x, codebook = randn(200, 4), randn(64, 4, seed=1)
    right_n, clear_n = winners(x, codebook)
    codebook[-1] = 1e12
    assert clear_n.mean() > 0.9
    kept_n = clear_n & (right_n != 63)
    np.testing.assert_array_equal(nearest(x, codebook, way=way).numpy()[kept_n], right_n[kept_n])


@pytest.mark.parametrize("far", [-1e12, 1e12])
def test_four_lost_codes_of_ten_spoil_no_search(way, far):
    x, codebook = randn(200, 4), randn(70, 4, seed=1)
    right_n, clear_n = winners(x, codebook[28:])
    codebook[:28] = far
    np.testing.assert_array_equal(nearest(x, codebook, way=way).numpy()[clear_n] - 28, right_n[clear_n])


def test_the_score_of_a_code_in_closed_form():
    x, codebook = randn(20, 3, dtype=torch.float64), randn(9, 3, seed=1, dtype=torch.float64) + 5
    found = scoring(codebook, "l2")
    score_nk = found.centred(x) @ found.weight_kd.t() - found.penalty_k / 2
    sq_dist_nk = torch.cdist(x, codebook).square()
    own_n1 = found.centred(x).square().sum(dim=1, keepdim=True)
    torch.testing.assert_close(score_nk, (own_n1 - sq_dist_nk) / (2 * found.size))
    assert torch.frexp(found.size).mantissa == 0.5
    assert 1 <= found.weight_kd.abs().max() < 2


def test_a_zero_code_has_cosine_zero(way):
    codebook = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert nearest(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), codebook, "cosine", "blocks").tolist() == [1, 0]
