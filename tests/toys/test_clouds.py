import numpy as np
import pytest

from driftvq.toys.clouds import DEMOS, make_cloud, random_matrix


def drifted(demo, initial, targets, order, steps, batch_size, r=0.1):
    """Suppl. 11, restated sample by sample: the state of the drift after some steps."""
    theta, matrix = [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]
    for step in range(steps):
        chosen = order[0, step * batch_size : (step + 1) * batch_size]
        delta, gradient = [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
        for i in chosen:
            x, y = initial[i], targets[i]
            if demo in ("expansion", "shrinking"):
                error = [y[a] - sum(matrix[a][b] * x[b] for b in range(2)) for a in range(2)]
                for a in range(2):
                    for b in range(2):
                        gradient[a][b] += 2 / batch_size * error[a] * x[b]
                continue
            sign = np.sign(x) if demo == "split" else np.ones(2)
            for a in range(2):
                delta[a] += sign[a] * (y[a] - (x[a] + sign[a] * theta[a])) / batch_size
        theta = [theta[a] + r * delta[a] for a in range(2)]
        matrix = [[matrix[a][b] + r * gradient[a][b] for b in range(2)] for a in range(2)]
    return matrix if demo in ("expansion", "shrinking") else theta


@pytest.mark.parametrize("demo", DEMOS)
def test_drift_is_the_supplements(demo):
    cloud = make_cloud(demo, 3, n=60, epochs=1)
    for idxs in cloud.batches(0, 20):
        cloud.advance_(idxs)
    expected = drifted(demo, cloud.initial, cloud.targets, cloud.order, 3, 20)
    np.testing.assert_allclose(cloud.drift, expected, rtol=1e-12)


@pytest.mark.parametrize("demo", DEMOS)
def test_cloud_goes_from_initial_to_targets(demo):
    cloud = make_cloud(demo, 0, n=300, epochs=60)
    np.testing.assert_array_equal(cloud.positions(), cloud.initial)
    for epoch in range(60):
        for idxs in cloud.batches(epoch, 100):
            cloud.advance_(idxs)
    np.testing.assert_allclose(cloud.positions(), cloud.targets, atol=1e-3)
    np.testing.assert_array_equal(cloud.batch([4, 2]), cloud.positions()[[4, 2]])


@pytest.mark.parametrize("demo", DEMOS)
def test_same_seed_same_arrays_and_more_epochs_only_add(demo):
    one, other = make_cloud(demo, 7, epochs=2), make_cloud(demo, 7, epochs=5)
    for name in ("initial", "targets", "codebook"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == np.float64
    np.testing.assert_array_equal(one.order, other.order[:2])
    assert not np.array_equal(one.initial, make_cloud(demo, 8, epochs=2).initial)


def test_every_epoch_sees_every_point_once():
    cloud = make_cloud("split", 0, n=30, epochs=2)
    assert sorted(np.concatenate(cloud.batches(1, 10))) == list(range(30))
    assert [len(idxs) for idxs in cloud.batches(0, 7)] == [7] * 4


def test_printed_split_update_would_lose_most_of_its_drift():
    cloud = make_cloud("split", 0)
    printed = (cloud.targets - cloud.positions()).mean(axis=0)
    np.testing.assert_allclose(printed / 10, 0.383, atol=0.06)
    cloud.advance_(np.arange(1500))
    np.testing.assert_allclose(cloud.drift, 1.0)


def test_matrix_has_norm_one_and_does_not_flatten():
    for seed in range(20):
        largest, smallest = np.linalg.svd(random_matrix(np.random.default_rng(seed).standard_normal), compute_uv=False)
        assert largest == pytest.approx(1)
        assert smallest >= 1 / 3 * (1 - 1e-9)


def test_unknown_demo_lists_the_known_nearest_first():
    with pytest.raises(ValueError, match="unknown demo 'translate'; known, nearest first: translation, "):
        make_cloud("translate", 0)
