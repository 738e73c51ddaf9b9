import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftvq.quantizers import QUANTIZERS
from driftvq.toys import rules


def nearest_code(codes, x):
    return min(range(len(codes)), key=lambda k: (math.dist(codes[k], x) ** 2, k))


def ema_restated(codes, batch, alpha):
    members = {}
    for x in batch:
        members.setdefault(nearest_code(codes, x), []).append(x)
    return [
        [(1 - alpha) * c[j] + alpha * sum(x[j] for x in members[k]) / len(members[k]) for j in range(2)]
        if k in members
        else list(c)
        for k, c in enumerate(codes)
    ]


def ns_vq_restated(codes, batch, lr, tau):
    codes = [list(c) for c in codes]
    for x in batch:
        w = nearest_code(codes, x)
        kernel = [math.exp(-(math.dist(c, codes[w]) ** 2) / tau) for c in codes]
        omega = [value / sum(kernel) for value in kernel]
        for k, c in enumerate(codes):
            step = lr if k == w else lr * omega[k]
            codes[k] = [c[j] + step * (x[j] - c[j]) for j in range(2)]
    return codes


def draw(seed, codes, points):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((codes, 2)), 2 * rng.standard_normal((points, 2)) + 1


cases = given(st.integers(0, 2**20), st.integers(1, 16), st.integers(1, 30))


@settings(derandomize=True, max_examples=40, deadline=None)
@cases
def test_ema_is_its_restatement(seed, codes, points):
    codebook, batch = draw(seed, codes, points)
    before = codebook.copy()
    np.testing.assert_allclose(
        rules.ema_update(codebook, batch, 0.3), ema_restated(codebook, batch, 0.3), rtol=1e-10, atol=1e-12
    )
    np.testing.assert_array_equal(codebook, before)


@settings(derandomize=True, max_examples=40, deadline=None)
@cases
def test_ns_vq_is_its_restatement(seed, codes, points):
    codebook, batch = draw(seed, codes, points)
    before = codebook.copy()
    for lr, tau in ((0.5, 3.0), (0.05, 1e-6)):
        np.testing.assert_allclose(
            rules.ns_vq_update(codebook, batch, lr, tau),
            ns_vq_restated(codebook, batch, lr, tau),
            rtol=1e-8,
            atol=1e-10,
        )
    np.testing.assert_array_equal(codebook, before)


def test_codes_without_a_point_stay_in_ema_and_move_in_ns_vq():
    codebook, batch = np.array([[0.0, 0.0], [5.0, 5.0]]), np.array([[0.5, 0.0]])
    assert rules.ema_update(codebook, batch).tolist() == [[0.15, 0.0], [5.0, 5.0]]
    assert (rules.ns_vq_update(codebook, batch, 0.5, 50.0)[1] < 5).all()


@pytest.mark.parametrize("update", [rules.ema_update, lambda c, b: rules.ns_vq_update(c, b, 0.5, 3.0)])
def test_runs_side_by_side_are_the_runs(update):
    codebooks, batches = (np.stack(parts) for parts in zip(*(draw(seed, 16, 40) for seed in range(3)), strict=True))
    together = update(codebooks, batches)
    for codebook, batch, result in zip(codebooks, batches, together, strict=True):
        np.testing.assert_allclose(update(codebook, batch), result, rtol=1e-12, atol=1e-13)


def test_ns_vq_schedule_halves_tau():
    learner = rules.NSVQToyLearner(np.zeros((2, 2)), lr=0.5, tau=3.0)
    learner.end_epoch_()
    learner.end_epoch_()
    assert (learner.tau, learner.lr) == pytest.approx((0.75, 0.405))


def test_trans_vq_starts_at_the_codes_and_moves_them_all():
    codebook, batch = draw(0, 16, 100)
    learner = rules.make_learner("trans_vq_toy", codebook)
    np.testing.assert_allclose(learner.codebook, codebook)
    learner.step_(batch + 5)
    learner.step_(batch + 5)
    assert (learner.codebook != codebook).all()
    np.testing.assert_array_equal(learner.quantizer.book.base.numpy(), codebook)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer_of_the_library_is_a_learner_with_sixteen_codes(name):
    codebook, batch = draw(0, 16, 100)
    learner = rules.make_learner(name, codebook)
    for _ in range(3):
        learner.step_(batch)
    learner.end_epoch_()
    assert learner.codebook.shape == (16, 2)
    assert learner.codebook.dtype == np.float64
    assert np.isfinite(learner.codebook).all()


@pytest.mark.parametrize("name", ["ns_vq", "trans_vq"])
def test_codebooks_that_follow_start_at_the_given_codes_and_at_once(name):
    codebook, batch = draw(0, 16, 100)
    learner = rules.make_learner(name, codebook)
    np.testing.assert_array_equal(learner.codebook, codebook)
    learner.step_(codebook + 1e-3)  # no k-means of the first batch in place of the codes
    np.testing.assert_allclose(learner.codebook, codebook, atol=2e-3)
    for _ in range(40):
        learner.step_(batch)
    assert len(np.unique(rules.winners(learner.codebook, batch))) == 16


def test_making_a_learner_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    one, same, other = (rules.make_learner("trans_vq_toy", np.ones((4, 2)), seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    weights = [learner.quantizer.book.transform.network[0].weight for learner in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_unknown_method_lists_the_known_nearest_first():
    with pytest.raises(ValueError, match="unknown method 'vanila'; known, nearest first: vanilla, "):
        rules.make_learner("vanila", np.ones((4, 2)))
