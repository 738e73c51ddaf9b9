from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import make_blobs

from driftvq.functional import KMeansResult, kmeans, kmeans_plus_plus
from driftvq.functional.kmeans import _draw_without_replacement

kmeans_module = import_module("driftvq.functional.kmeans")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def blobs(n, d, centers, seed=0):
    return torch.from_numpy(make_blobs(n, d, centers=centers, random_state=seed)[0]).float()


def sq_dist_nk(x_nd, codebook_kd):
    return np.square(x_nd.double().numpy()[:, None] - codebook_kd.double().numpy()).sum(axis=2)


CLOUDS = {
    "blobs": (blobs(1500, 2, centers=12), 12),
    "blobs, more codes": (blobs(1500, 8, centers=10), 40),
    "gaussian": (randn(2000, 4), 32),
    "gaussian, rounds of several seeds": (randn(3000, 6), 200),
    "line": (randn(1500, 1), 20),
}


def mean_inertia(cloud, iterations, scikit_seeding=None):
    """Over several seeds, ours or scikit-learn's; its seeding by default tries several candidates for each seed."""
    x, k = CLOUDS[cloud]
    inertia = []
    for seed in range(24 if k < 100 else 6):
        if scikit_seeding is None:
            inertia.append(kmeans(x, k, iterations, generator=generator(seed)).inertia.item())
            continue
        trials = 1 if scikit_seeding == "plain" else None
        start, _ = kmeans_plusplus(x.numpy(), k, random_state=seed, n_local_trials=trials)
        inertia.append(KMeans(k, init=start, n_init=1, max_iter=iterations, tol=0).fit(x.numpy()).inertia_)
    return np.mean(inertia)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("cloud", CLOUDS)
def test_inertia_is_that_of_scikit_learn(cloud):
    ours = mean_inertia(cloud, 10)
    assert ours < 1.02 * mean_inertia(cloud, 10, "plain")
    assert ours < 1.02 * mean_inertia(cloud, 10, "several candidates")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_result_agrees_with_itself(cloud):
    x, k = CLOUDS[cloud]
    result = kmeans(x, k, generator=generator())
    assert isinstance(result, KMeansResult)
    assert result.codebook.shape == (k, x.shape[1])
    dist = sq_dist_nk(x, result.codebook)
    chosen = dist[np.arange(len(x)), result.indices.numpy()]
    np.testing.assert_allclose(chosen, dist.min(axis=1), rtol=1e-4, atol=1e-6)
    assert result.inertia.item() == pytest.approx(chosen.sum(), rel=1e-4)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_at_convergence_every_code_is_the_mean_of_its_cell(cloud):
    x, k = CLOUDS[cloud]
    codebook, indices, _ = kmeans(x, k, iterations=1000, generator=generator())
    for code in range(k):
        cell = x[indices == code]
        assert len(cell) > 0
        np.testing.assert_allclose(codebook[code].numpy(), cell.double().mean(dim=0).numpy(), atol=1e-4)


def test_every_iteration_helps():
    x, k = CLOUDS["gaussian"]
    inertia = [kmeans(x, k, iterations, generator=generator()).inertia.item() for iterations in range(8)]
    assert all(later < earlier for earlier, later in pairwise(inertia))


def test_no_iteration_is_the_seeding():
    x, k = CLOUDS["gaussian"]
    assert torch.equal(kmeans(x, k, 0, generator=generator(3)).codebook, kmeans_plus_plus(x, k, generator(3)))


def test_the_seeding_is_better_than_a_random_choice():
    x = torch.cat([blobs(600, 3, centers=1) + 40 * offset for offset in randn(15, 3)])
    rows = [torch.randperm(len(x), generator=generator(seed))[:15] for seed in range(10)]
    by_chance = np.mean([sq_dist_nk(x, x[row]).min(axis=1).sum() for row in rows])
    seeded = np.mean([sq_dist_nk(x, kmeans_plus_plus(x, 15, generator(seed))).min(axis=1).sum() for seed in range(10)])
    assert seeded < 0.5 * by_chance


@pytest.mark.parametrize("k", [1, 5, 63, 64, 65, 130, 299, 300])
def test_seeds_are_distinct_latents(k):
    x = randn(300, 2)
    seeds = kmeans_plus_plus(x, k, generator())
    found = sq_dist_nk(seeds, x).argmin(axis=1)
    assert seeds.shape == (k, 2)
    assert torch.equal(seeds, x[found])
    assert len(set(found)) == k


def test_seeds_are_distinct_where_squared_distances_vanish():
    x = 1e-30 * torch.arange(10.0)[:, None]
    for seed in range(5):
        assert len(kmeans_plus_plus(x, 10, generator(seed)).unique()) == 10


def test_candidates_are_drawn_by_squared_distance():
    sq_dist, taken = torch.tensor([0.0, 1.0, 9.0]), torch.tensor([0])
    drawn = [_draw_without_replacement(sq_dist, taken, 1, generator(seed)).item() for seed in range(2000)]
    assert set(drawn) == {1, 2}
    assert np.mean(np.array(drawn) == 2) == pytest.approx(0.9, abs=0.03)


def test_more_seeds_than_latents():
    with pytest.raises(ValueError, match="cannot draw 4 seeds from 3 latents"):
        kmeans_plus_plus(randn(3, 2), 4)


def test_empty_cells_are_seeded_again_at_the_latents_that_fit_worst(monkeypatch):
    x = torch.cat([0.1 * randn(200, 2), 0.1 * randn(50, 2, seed=1) + 10, 0.1 * randn(50, 2, seed=2) - 10])
    start = torch.tensor([[0.0, 0.0], [500.0, 500.0], [900.0, 900.0]])
    monkeypatch.setattr(kmeans_module, "kmeans_plus_plus", lambda *args: start.clone())
    codebook, indices, _ = kmeans(x, 3)
    assert indices.bincount(minlength=3).sort().values.tolist() == [50, 50, 200]
    assert codebook.abs().max() < 11


def test_one_step_moves_an_empty_cell_to_the_worst_latent(monkeypatch):
    x = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    monkeypatch.setattr(kmeans_module, "kmeans_plus_plus", lambda *args: torch.tensor([[1.0], [100.0]]))
    codebook, _, _ = kmeans(x, 2, iterations=1)
    assert codebook.flatten().tolist() == [3.0, 9.0]


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_reproducible_under_a_generator(metric):
    x = randn(500, 3)
    first, second = (kmeans(x, 20, metric=metric, generator=generator(4)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    other = kmeans(x, 20, metric=metric, generator=generator(5))
    assert not torch.equal(first.codebook, other.codebook)


def test_a_generator_keeps_the_global_random_state_out():
    before = torch.get_rng_state()
    kmeans(randn(200, 3), 10, generator=generator())
    assert torch.equal(torch.get_rng_state(), before)


@given(n=st.integers(1, 12), k=st.integers(1, 30), d=st.integers(1, 5), seed=st.integers(0, 9999))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_few_latents(n, k, d, seed):
    x = randn(n, d, seed=seed)
    codebook, indices, inertia = kmeans(x, k, generator=generator())
    assert codebook.shape == (k, d)
    assert indices.shape == (n,)
    assert codebook.isfinite().all()
    if n <= k:
        assert inertia.item() == 0
        assert torch.equal(codebook[indices], x)


@pytest.mark.parametrize(("n", "k"), [(100, 5), (5, 5), (3, 5), (1, 1), (200, 100)])
def test_equal_latents(n, k):
    x = torch.full((n, 3), 0.1)
    codebook, indices, inertia = kmeans(x, k, generator=generator())
    torch.testing.assert_close(codebook, torch.full((k, 3), 0.1))
    assert inertia.item() == pytest.approx(0, abs=1e-6)
    assert ((indices >= 0) & (indices < k)).all()


@pytest.mark.parametrize("k", [4, 6, 100])
def test_as_many_places_as_codes_are_all_found(k):
    places = 5 * randn(k, 3)
    x = places.repeat(7, 1)[torch.randperm(7 * k, generator=generator())]
    assert kmeans(x, k, generator=generator()).inertia.item() == pytest.approx(0, abs=1e-6)


def test_cosine_gives_unit_codes_and_ignores_length():
    x = randn(800, 4)
    lengths = torch.rand(800, 1, generator=generator(1)) + 0.1
    codebook, indices, inertia = kmeans(x, 30, metric="cosine", generator=generator())
    scaled = kmeans(x * lengths, 30, metric="cosine", generator=generator())
    torch.testing.assert_close(codebook.norm(dim=1), torch.ones(30))
    assert scaled.inertia.item() == pytest.approx(inertia.item(), rel=1e-3)
    unit = torch.nn.functional.normalize(x, dim=1)
    similarity = unit @ codebook.t()
    torch.testing.assert_close(similarity.gather(1, indices[:, None])[:, 0], similarity.max(dim=1).values)


def test_cosine_codes_are_unit_length_with_few_latents():
    codebook = kmeans(5 * randn(3, 4), 7, metric="cosine").codebook
    torch.testing.assert_close(codebook.norm(dim=1), torch.ones(7))


def test_half_precision_latents_are_averaged_in_float32():
    x = torch.cat([torch.full((3000, 1), 1.0), torch.full((3000, 1), 2.0), torch.full((1000, 1), 40.0)]).bfloat16()
    codebook = kmeans(x, 2, generator=generator()).codebook
    assert codebook.float().flatten().sort().values.tolist() == pytest.approx([1.5, 40.0], rel=1e-2)


def test_latents_are_left_alone_and_no_gradient_flows():
    x = randn(100, 3).requires_grad_()
    before = x.detach().clone()
    result = kmeans(x, 8, generator=generator())
    assert torch.equal(x, before)
    assert not any(tensor.requires_grad for tensor in result)


@pytest.mark.parametrize("shape", [(0, 3), (4,), (2, 3, 4)])
def test_wrong_latents(shape):
    with pytest.raises(ValueError, match=r"shape \(n, d\) with n ≥ 1, got \("):
        kmeans(torch.zeros(shape), 2)


@pytest.mark.parametrize("size", [0, -3])
def test_wrong_codebook_size(size):
    with pytest.raises(ValueError, match=f"codebook_size must be at least 1, got {size}"):
        kmeans(randn(5, 2), size)


@pytest.mark.parametrize("n", [3, 10])
def test_unknown_metric(n):
    with pytest.raises(ValueError, match="metric must be one of"):
        kmeans(randn(n, 2), 5, metric="euclidean")
