"""A run that is killed and resumed must be the run that was not."""

import signal
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.training.runs import arguments, checkpoint, differences, make_images, records, run_process

STEPS, KILLED_AT = 20, 9

CASES: dict[str, dict[str, Any]] = {
    "ns_vq": {"quantizer": "ns_vq"},
    "ns_vq_paper, a worker": {
        "quantizer": "ns_vq_paper",
        "quantizer_options": ["decay_every=5"],
        "workers": 1,
    },
    "trans_vq, a worker": {"quantizer": "trans_vq", "workers": 1},
    "killed while the encoder rests": {"quantizer": "sim_vq", "settle": 0.8, "adversarial_weight": 0.5},
    "k-means start in the first steps": {
        "quantizer": "ema_vq",
        "quantizer_options": ["kmeans_init=true"],
        "codebook_size": 400,
    },
}
MORE_CASES: dict[str, dict[str, Any]] = {
    "ns_vq, a worker": {"quantizer": "ns_vq", "workers": 1},
    "ns_vq_paper": {"quantizer": "ns_vq_paper", "quantizer_options": ["decay_every=5"]},
    "trans_vq": {"quantizer": "trans_vq"},
    "vq with restarts": {"quantizer": "vq", "quantizer_options": ["kmeans_init=true", "restart_after=3"]},
    "gumbel_vq, which draws random numbers": {"quantizer": "gumbel_vq"},
    "killed before the encoder rests": {"settle": 0.4},
    "averages, killed while the encoder rests": {"settle": 0.8, "weight_ema": 0.9, "quantizer": "bridge_vq"},
    "averaged weights, clipped gradients": {"weight_ema": 0.9, "clip": 0.5, "checkpoint_every": 5},
    "adversary": {"adversarial_weight": 0.5, "adversarial_start": 6},
    "accumulation": {"accumulate": 2, "monitor": "loss"},
    "TensorBoard": {"tensorboard": True},
    "killed in the warm-up": {"warm_up": 12},
    "killed after the warm-up": {"warm_up": 4},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "images")


def finish(words, log=None):
    process = run_process(words, log)
    process.join(120)
    assert process.exitcode == 0


def kill_at(step, words):
    process = run_process(words, signal_at=(step, signal.SIGKILL))
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def assert_same_run(first, second, step):
    assert records(first) == records(second)
    assert [record["step"] for record in records(first) if "train/loss" in record] == list(range(1, step + 1))
    assert differences(checkpoint(first, step), checkpoint(second, step)) == []
    models = [load_file(run / "model" / "model.safetensors") for run in (first, second)]
    assert differences(*models) == []


@pytest.mark.trial("kill -9 in training, and resumed to the same bits")
@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_CASES)])
def test_killed_and_resumed_is_the_same_run(name, images, tmp_path, trials):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings = {"steps": STEPS, **{**CASES, **MORE_CASES}[name]}
    finish(arguments(images, whole, **settings))
    kill_at(KILLED_AT, arguments(images, broken, **settings))
    assert not (broken / "checkpoints" / f"step-{STEPS:08d}.ckpt").exists(), "killed too late to prove anything"
    with trials.one():
        finish(["train", "--resume", str(broken)])
        assert_same_run(whole, broken, STEPS)


@pytest.mark.slow
@pytest.mark.trial("kill -9 in training, and resumed to the same bits")
def test_killed_in_every_step_and_in_every_checkpoint(images, tmp_path, trials):
    finish(arguments(images, tmp_path / "whole", steps=STEPS))
    for step in range(1, STEPS):
        broken = tmp_path / f"step-{step}"
        kill_at(step, arguments(images, broken, steps=STEPS))
        with trials.one():
            finish(["train", "--resume", str(broken)])
            assert_same_run(tmp_path / "whole", broken, STEPS)
    broken = tmp_path / "checkpoint"
    for start in (arguments(images, broken, steps=STEPS), *[["train", "--resume", str(broken)]] * 2):
        process = run_process(start, signals_in_checkpoint=(signal.SIGKILL,))
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    with trials.one():
        finish(["train", "--resume", str(broken)])
        assert_same_run(tmp_path / "whole", broken, STEPS)


def test_resumed_from_the_checkpoint_before_a_truncated_one(images, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(arguments(images, whole, steps=12))
    finish(arguments(images, broken, steps=8))
    newest = broken / "checkpoints" / "step-00000008.ckpt"
    newest.write_bytes(newest.read_bytes()[:5000])
    log = tmp_path / "log.txt"
    finish(["train", "--resume", str(broken), "--steps", "12"], log)
    assert_same_run(whole, broken, 12)
    assert f"warning: checkpoint {newest} is truncated" in log.read_text()


def test_killed_before_the_first_checkpoint(images, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(arguments(images, whole, checkpoint_every=1000))
    kill_at(3, arguments(images, broken, checkpoint_every=1000))
    assert not (broken / "checkpoints").exists()
    finish(["train", "--resume", str(broken)])
    assert_same_run(whole, broken, 12)


def test_a_finished_run_goes_on_with_more_steps(images, tmp_path):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    finish(arguments(images, whole, steps=12))
    finish(arguments(images, longer, steps=8))
    finish(["train", "--resume", "--out", str(longer), "--steps", "12"])
    assert_same_run(whole, longer, 12)
