import itertools

import pytest

from driftvq.experiments.engine import share_machine
from driftvq.experiments.estimate import START_SECONDS, Speed, _key, estimate_cells, measure_speed, wall_seconds
from tests.experiments.smoke import smoke_plan


def test_a_cell_takes_its_steps_times_its_batch_its_validations_and_what_is_looked_at_afterwards():
    plan = smoke_plan(methods=("autoencoder", "kmeans_afterwards", "vq"), steps=10)
    speeds = {("small", 32, "autoencoder", 0, 4): 0.6, ("small", 32, "vq", 32, 4): 0.6}
    times = estimate_cells(plan, Speed(speeds, fixed=3.0, evaluate=0.25))
    plain, vq, afterwards = times.values()
    validated = 10 / 2 * 4  # every second step, four images
    counted = 2 * 50 * 32 / 64  # of held-out and of training images, fifty latents for each code, 64 of them an image
    assert plain == pytest.approx((START_SECONDS + 0.6 * (10 * 4) + 0.2 * validated, 3 + 8 * (0.25 + 0.2)))
    assert afterwards == pytest.approx((START_SECONDS + 0.1 * 8, plain[1] + 0.1 * counted))
    assert vq == pytest.approx((plain[0], plain[1] + 0.1 * counted))


def test_jobs_share_the_cells():
    times = {name: (seconds, 0.0) for name, seconds in zip("abc", (3.0, 2.0, 2.0), strict=True)}
    assert wall_seconds(times, 1) == 7
    assert wall_seconds(times, 2) == 4


def test_speed_is_measured_for_each_method(monkeypatch):
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr("driftvq.experiments.estimate.time.perf_counter", lambda: next(clock))
    plan = smoke_plan(methods=("vq", "ns_vq", "autoencoder", "kmeans_afterwards"))
    speed = measure_speed(plan, 1)
    # every step takes one tick of two seconds, for batches of four images
    assert speed.train == dict.fromkeys(map(_key, plan.cells), 0.5)
    assert (speed.fixed, speed.evaluate) == (4.0, 1.0)  # a tick before and one after two batches of two images


def test_when_it_takes_long_what_is_not_measured_is_taken_for_what_is_most_like_it(monkeypatch):
    clock = itertools.count(0.0, 5.0)
    monkeypatch.setattr("driftvq.experiments.estimate.time.monotonic", lambda: next(clock))
    measured = []
    monkeypatch.setattr("driftvq.experiments.estimate._evaluation_seconds", lambda plan: (0.0, 0.0))
    monkeypatch.setattr(
        "driftvq.experiments.estimate._training_seconds", lambda cell: measured.append(_key(cell)) or len(measured)
    )
    plan = smoke_plan(methods=("vq", "fsq", "bsq", "ns_vq", "ema_tuned"), codebook_size=(16, 32))
    train = measure_speed(plan, 1).train
    assert [key[2:4] for key in measured] == [("vq", 32), ("fsq", 32), ("bsq", 32), ("ns_vq", 32)]
    assert train["small", 32, "fsq", 16, 4] == 2  # its own, with more codes
    assert train["small", 32, "ema_tuned", 32, 4] == 2.5  # the median of all


def test_batches_of_other_sizes_are_measured_by_themselves():
    """What a codebook costs is shared by the images of a batch: for one image it is the less the larger the batch."""
    plan = smoke_plan(recipe="figure-batch-size", methods=("vq",), codebook_size=(16,))
    assert {key[4] for key in measure_speed(plan, 1).train} == {cell.config.batch_size for cell in plan.cells}


@pytest.mark.parametrize(("asked", "cells", "expected"), [(None, 9, (2, 4)), (4, 9, (4, 2)), (3, 1, (1, 8))])
def test_cores_are_shared_out(monkeypatch, asked, cells, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0 if asked else 2)
    monkeypatch.setattr("driftvq.experiments.engine.cores", lambda: 8)
    assert share_machine(asked, cells)[:2] == expected


def test_without_gpus_each_core_has_a_cell(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("driftvq.experiments.engine.cores", lambda: 8)
    assert share_machine(None, 9) == (8, 1, 0)
