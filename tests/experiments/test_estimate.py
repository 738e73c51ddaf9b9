import itertools

import pytest

from driftvq.experiments.engine import share_machine
from driftvq.experiments.estimate import START_SECONDS, Speed, estimate_cells, measure_speed, wall_seconds
from tests.experiments.smoke import smoke_plan


def test_a_cell_takes_its_steps_times_its_batch():
    plan = smoke_plan(methods=("autoencoder", "kmeans_afterwards"), steps=10)
    speed = Speed({("small", 32, "autoencoder", 0): 0.5}, 0.25)
    times = estimate_cells(plan, speed)
    assert list(times.values()) == [(START_SECONDS + 10 * 4 * 0.5, 8 * 0.25), (START_SECONDS, 8 * 0.25)]


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
    assert speed.train == dict.fromkeys(
        [("small", 32, "autoencoder", 0), ("small", 32, "vq", 32), ("small", 32, "ns_vq", 32)], 0.5
    )
    assert speed.evaluate == 0  # twice as many images take one tick as well


def test_when_it_takes_long_what_is_not_measured_is_taken_for_the_slowest(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("driftvq.experiments.estimate.time.monotonic", lambda: next(clock))
    speeds = iter((0.5, 0.25))
    monkeypatch.setattr("driftvq.experiments.estimate._training_seconds", lambda cell: next(speeds))
    monkeypatch.setattr("driftvq.experiments.estimate._evaluation_seconds", lambda plan: 0.0)
    plan = smoke_plan(methods=("vq", "fsq", "bsq", "ns_vq"))
    assert list(measure_speed(plan, 1).train.values()) == [0.5, 0.25, 0.5, 0.5]


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
