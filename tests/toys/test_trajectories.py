import numpy as np
import pytest
import torch

from driftvq.toys import rules
from driftvq.toys.clouds import make_cloud
from driftvq.toys.trajectories import Row, format_table, kmeans_optimum, measure, run_demos, toy_table


def run_demo(demo: str, method: str, seed: int, **settings):
    return run_demos([(demo, seed)], method, **settings)[0]


@pytest.fixture(scope="module")
def table():
    rows = toy_table(5, ("vanilla", "ns_vq_toy"))
    return {(row.demo, row.method): row for row in rows}


def test_vanilla_dies_in_translation(table):
    row = table["translation", "vanilla"]
    assert 1.5 <= row.codes_used.mean() <= 2.6
    assert 5 <= row.relative_distortion.mean() <= 7.5


@pytest.mark.parametrize("demo", ["translation", "expansion", "shrinking"])
def test_ns_vq_keeps_all_codes_within_five_percent(table, demo):
    row = table[demo, "ns_vq_toy"]
    assert (row.codes_used == 16).all()
    assert (row.relative_distortion < 1.05).all()


def test_ns_vq_keeps_nearly_all_codes_in_split_where_vanilla_loses_two_thirds(table):
    assert table["split", "ns_vq_toy"].codes_used.min() >= 15
    assert table["split", "ns_vq_toy"].relative_distortion.mean() < 1.4
    assert table["split", "vanilla"].codes_used.max() <= 7


def test_vanilla_dies_in_shrinking_and_lives_in_expansion(table):
    assert table["shrinking", "vanilla"].codes_used.mean() < 10
    assert (table["expansion", "vanilla"].codes_used == 16).all()


def test_trans_vq_keeps_more_codes_than_vanilla_in_translation():
    kept = [run_demo("translation", method, 1).codes_used for method in ("trans_vq_toy", "vanilla")]
    assert kept[0] >= 2 * kept[1]


def test_measure_counts_and_averages():
    points = np.array([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0]])
    codes = np.array([[0.0, 1.0], [9.0, 0.0], [50.0, 50.0], [60.0, 0.0]])
    assert measure(codes, points) == (0.5, pytest.approx(2 / 3))


def test_runs_side_by_side_are_the_runs():
    together = run_demos([("split", 1), ("translation", 2)], "ns_vq_toy", n=200, epochs=3)
    for trajectory, (demo, seed) in zip(together, [("split", 1), ("translation", 2)], strict=True):
        alone = run_demo(demo, "ns_vq_toy", seed, n=200, epochs=3)
        np.testing.assert_allclose(trajectory.codebooks, alone.codebooks, rtol=1e-9)
        np.testing.assert_array_equal(trajectory.usage, alone.usage)


def test_trajectory_is_the_loop_written_out():
    trajectory = run_demo("translation", "vanilla", 4, n=100, batch_size=20, epochs=2)
    cloud = make_cloud("translation", 4, 100, epochs=2)
    codes = cloud.codebook
    for step in range(10):
        idxs = cloud.order[step // 5, step % 5 * 20 : (step % 5 + 1) * 20]
        codes = rules.ema_update(codes, cloud.batch(idxs))
        assert trajectory.distortion[step + 1] == pytest.approx(measure(codes, cloud.positions())[1])
        np.testing.assert_array_equal(trajectory.positions(step + 1), cloud.positions())
        cloud.advance_(idxs)
    np.testing.assert_allclose(trajectory.codebooks[-1], codes)


@pytest.mark.parametrize(("epochs", "speed"), [(1, 0.1), (3, 0.9), (30, 0.01)])
def test_five_snapshots_from_start_to_end(epochs, speed):
    trajectory = run_demo("split", "vanilla", 0, n=200, epochs=epochs, speed=speed)
    steps = [snapshot.step for snapshot in trajectory.snapshots]
    assert len(steps) == 5
    assert (steps[0], steps[-1]) == (0, 2 * epochs)
    assert steps == sorted(steps)
    assert trajectory.snapshots[2].batch.shape == (100, 2)


def test_optimum_is_no_worse_than_one_start():
    points = make_cloud("expansion", 0).targets
    codes, distortion = kmeans_optimum(points, 16)
    assert distortion == pytest.approx(measure(codes, points)[1])
    assert distortion <= kmeans_optimum(points, 16, restarts=1)[1] + 1e-12


def test_the_number_of_torch_threads_is_given_back():
    threads = torch.get_num_threads()
    run_demo("split", "vq", 0, n=100, epochs=1)
    assert torch.get_num_threads() == threads


def test_own_learner_is_followed():
    trajectory = run_demo("split", "still", 0, n=100, epochs=1, learner=lambda codes: rules.EMALearner(codes, 0.0))
    np.testing.assert_array_equal(trajectory.codebooks[0], trajectory.codebooks[-1])


def test_table_is_markdown():
    row = Row("split", "vanilla", np.array([4.0, 6.0]), np.array([3.0, 4.0]))
    assert format_table([row]).splitlines()[-1] == "| split | vanilla | 5.0 ± 1.0 | 3.50 ± 0.50 |"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"demo": "splat"}, "unknown demo 'splat'; known, nearest first: split"),
        ({"method": "ns-vq"}, "unknown method 'ns-vq'; known, nearest first: ns_vq"),
        ({"batch_size": 0}, "batch_size must lie between 1 and the 1500 points of the cloud, got 0"),
        ({"batch_size": 1501}, "got 1501"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
    ],
)
def test_wrong_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        run_demo(**{"demo": "split", "method": "vanilla", "seed": 0, **changes})
