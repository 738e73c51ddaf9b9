import numpy as np
import pytest
import torch
from benchmarks import theory


def test_decreasing_steps_reach_a_fixed_point_and_a_constant_step_hovers():
    checkpoints = (1_000, 30_000)
    falling = theory.online_vq(theory.robbins_monro, range(3), checkpoints).gap.mean(axis=1)
    constant = theory.online_vq(theory.constant, range(3), checkpoints).gap.mean(axis=1)
    assert falling[1] < 0.06 < 0.1 < constant[1]
    assert falling[1] < falling[0] / 2
    assert constant[1] > constant[0] / 2


def test_the_mean_of_every_cell_is_a_fixed_point():
    points = np.array([[0.0, 0.0], [2.0, 0.0], [9.0, 1.0]])
    codes = np.array([[1.0, 0.0], [9.0, 1.0], [99.0, 0.0]])
    assert theory.fixed_point_gap(codes, points) == (0.0, 0.0)
    gap, excess = theory.fixed_point_gap(codes + np.array([[0.1, 0.0], [0.0, 0.0], [0.0, 0.0]]), points)
    assert gap > 0.05
    assert excess > 0


def test_robbins_monro_conditions():
    steps = np.array([theory.robbins_monro(step) for step in range(200_000)])
    halves = steps[:100_000], steps[100_000:]
    assert halves[1].sum() > 0.1 * halves[0].sum()
    assert np.square(halves[1]).sum() < 0.01 * np.square(halves[0]).sum()


def test_vanilla_loses_more_codes_to_faster_drift_and_smaller_batches():
    usage = theory.usage_map("vanilla", speeds=(0.01, 0.1), batch_sizes=(10, 300))
    assert (usage[0] > usage[1]).all()
    assert (usage[:, 1] > usage[:, 0]).all()


def test_ns_vq_keeps_codes_where_vanilla_does_not():
    cell = {"speeds": (0.1,), "batch_sizes": (100,)}
    assert theory.usage_map("ns_vq_toy", **cell).item() == 1
    assert theory.usage_map("vanilla", **cell).item() < 0.25


def test_one_dimension_is_out_of_reach_for_sim_vq_only():
    result = theory.one_dimension(seed=2, rounds=3)
    assert result.sim_vq > 0.99 * result.best_linear > 3
    assert result.trans_vq < 1.05


def test_tangent_kernel_predicts_the_drift_of_an_encoder():
    torch.manual_seed(0)
    encoder, decoder = theory.make_autoencoder()
    correlation = theory.drift_correlations(encoder, decoder, theory.photo_patches(12, seed=0))
    assert correlation["tangent kernel"] > 0.999
    assert correlation["Gaussian kernel"] > 0.5
    assert abs(correlation["pull"]) < 0.5


def test_patches_are_images_between_minus_one_and_one():
    patches = theory.photo_patches(5, seed=1)
    assert patches.shape == (5, 3, 8, 8)
    assert -1 <= patches.min() < patches.max() <= 1
    assert torch.equal(patches, theory.photo_patches(5, seed=1))


@pytest.mark.parametrize("name", theory.REPORTS)
def test_every_claim_has_a_report(name):
    assert callable(theory.REPORTS[name])
