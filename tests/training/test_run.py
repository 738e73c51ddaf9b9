import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from driftvq.data import eval_batches, open_source, to_float, to_uint8, train_batches
from driftvq.files import LOCK_FILE, locked
from driftvq.machine import environment
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.checkpoints import seed_all
from driftvq.training.config import TrainConfig
from driftvq.training.fabric import LAUNCHED, pick_precision
from driftvq.training.loop import Probe
from driftvq.training.objective import Adversary
from driftvq.training.run import new_run, resumed_config, train, write_run_files
from driftvq.training.settings import make_config, read_settings
from tests.training.runs import checkpoint, differences, make_images, records


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in (LAUNCHED, "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_run_without_a_name_gets_one_that_is_free():
    names = set()
    for _ in range(3):
        folder = new_run(TrainConfig(quantizer="trans_vq"))
        assert str(folder.parent) == "runs"
        assert "trans_vq" in folder.name
        folder.mkdir(parents=True)
        names.add(folder.name)
    assert len(names) == 3


def test_nothing_is_overwritten(tmp_path):
    out = tmp_path / "x"
    out.mkdir()
    assert new_run(TrainConfig(out=str(out))) == out
    write_run_files(out, TrainConfig(), 10)
    with pytest.raises(ValueError, match="not empty; choose another --out; to continue it: driftvq train --resume"):
        new_run(TrainConfig(out=str(out)))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        new_run(TrainConfig(out=str(tmp_path / "file")))


def test_a_folder_that_somebody_is_just_beginning_to_use_is_refused(tmp_path):
    out = tmp_path / "x"
    config = TrainConfig(out=str(out), steps=1, quantizer="none", workers=0)
    out.mkdir()
    with locked(out, "training"), pytest.raises(ValueError, match=r"another training, process \d+ on .* is working"):
        train(config)
    assert [path.name for path in out.iterdir()] == [LOCK_FILE]


def test_other_processes_take_the_folder_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="give it with --out"):
        new_run(TrainConfig())
    monkeypatch.setenv(LAUNCHED, str(tmp_path))
    (tmp_path / "config.yaml").touch()
    assert new_run(TrainConfig()) == tmp_path


def test_several_machines_need_a_name():
    with pytest.raises(ValueError, match="give it with --out"):
        new_run(TrainConfig(num_nodes=2))


def test_the_saved_config_describes_the_same_run_again(tmp_path):
    config = TrainConfig(epochs=2.0, quantizer_options={"commitment_weight": 1.0}, out="runs/y", betas=(0.5, 0.9))
    write_run_files(tmp_path, config, 33)
    again = make_config(read_settings(tmp_path / "config.yaml"))
    assert again.to_dict() == {**config.to_dict(), "epochs": None, "steps": 33, "out": None}


def test_the_environment_is_saved(tmp_path):
    write_run_files(tmp_path, TrainConfig(), 1)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["packages"]["torch"] == environment()["packages"]["torch"]
    assert {"command", "date", "python", "platform", "git", "threads"} <= found.keys()
    assert found["precision"] == pick_precision(TrainConfig())  # what "auto" was on this machine


def test_a_resumed_run_keeps_its_course(tmp_path):
    write_run_files(tmp_path, TrainConfig(seed=3), 10)
    config = resumed_config(tmp_path, {"steps": 20, "workers": 2}, {})
    assert (config.steps, config.workers, config.seed, config.out) == (20, 2, 3, str(tmp_path))
    assert resumed_config(tmp_path, {"seed": 3}, {}).seed == 3
    with pytest.raises(ValueError, match="these differ: codebook_size: 1024 → 64; seed: 3 → 4"):
        resumed_config(tmp_path, {"seed": 4}, {"codebook_size": 64})
    with pytest.raises(ValueError, match="is not a run to resume"):
        resumed_config(tmp_path / "none", {}, {})


pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "size": 16,
    "batch_size": 4,
    "codebook_size": 32,
    "code_dim": 8,
    "steps": 6,
    "val_every": 2,
    "checkpoint_every": 100,
    "log_every": 1,
    "probe_every": 0,
    "val_images": 6,
    "val_share": 0.2,
    "workers": 0,
    "accelerator": "cpu",
    "precision": "32-true",
    "tensorboard": False,
}


@pytest.fixture
def small(pictures, tmp_path):
    """Make the config of a small run."""
    return lambda **changes: TrainConfig(**{**SMALL, "data": str(pictures), "out": str(tmp_path / "run"), **changes})


def values(run, name):
    return [record[name] for record in records(run) if name in record]


def psnr_of_saved_model(config, run):
    """The mean PSNR of the saved model over the validation images, from the definition."""
    model = VQVAE.from_pretrained(run)
    source = open_source(config.data, "val", val_share=config.val_share, seed=config.seed)
    found = []
    for batch in eval_batches(source, size=config.size, batch_size=1, limit=config.val_images):
        rebuilt = to_uint8(model.reconstruct(to_float(batch.images)))
        mse = (batch.images.double() - rebuilt.double()).square().mean()
        found.append(10 * torch.log10(255**2 / mse).item())
    return sum(found) / len(found)


@pytest.mark.parametrize("quantizer", ["vq", "trans_vq", "none"])
def test_the_losses_are_those_of_a_plain_loop(small, tmp_path, quantizer):
    options = {"kmeans_init": False} if quantizer == "trans_vq" else {}
    config = small(quantizer=quantizer, quantizer_options=options, channels_last="off")
    train(config)

    seed_all(config.seed)
    model = VQVAE(ModelConfig(quantizer=quantizer, quantizer_options=options, codebook_size=32, code_dim=8))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-4, fused=True)
    source = open_source(config.data, "train", val_share=config.val_share, seed=config.seed)
    expected = []
    for step, batch in enumerate(train_batches(source, size=16, batch_size=4, seed=config.seed)):
        if step == config.steps:
            break
        images = batch.images.float() / 127.5 - 1
        output = model(images)
        loss = F.mse_loss(output.images, images) + output.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert values(tmp_path / "run", "train/loss") == expected


@pytest.mark.parametrize("changes", [{}, {"weight_ema": 0.8}, {"monitor": "loss"}, {"quantizer": "residual_vq"}])
def test_the_saved_model_is_the_best_one_and_gives_the_validated_psnr(small, changes):
    config = small(**changes)
    result = train(config)
    scores = values(result.run, f"val/{config.monitor}")
    assert len(scores) == 3
    best = min(scores) if config.monitor == "loss" else max(scores)
    assert result.best[f"val/{config.monitor}"] == pytest.approx(best, rel=1e-6)
    assert int(result.best["step"]) == 2 * (1 + scores.index(best))
    assert psnr_of_saved_model(config, result.run) == pytest.approx(result.best["val/psnr"], abs=1e-3)
    card = (result.run / "model" / "README.md").read_text()
    assert f"| PSNR | {result.best['val/psnr']:.4g} |" in card
    assert f"| Selected by these images | {result.best['val/usage']:.4g} |" in card


@pytest.mark.parametrize("changes", [{}, {"weight_ema": 0.8}])
def test_the_returned_model_is_that_of_the_last_step(small, changes):
    config = small(steps=5, val_every=5, **changes)  # one validation, after the last step: the best model is the last
    result = train(config)
    saved = VQVAE.from_pretrained(result.run).state_dict()
    assert not result.model.training
    assert all(torch.equal(value, saved[name]) for name, value in result.model.state_dict().items())
    again = train(config, resume=True).model.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in again.items())


@pytest.mark.parametrize("quantizer", ["ns_vq", "trans_vq", "vq", "none"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true"])
def test_every_precision_that_is_offered_trains_and_resumes(small, precision, quantizer, tmp_path):
    config = small(steps=4, precision=precision, quantizer=quantizer, checkpoint_every=2, adversarial_start=2)
    config = replace(config, adversarial_weight=0.5, weight_ema=0.9)
    whole = train(config)
    wanted = {"bf16-true": torch.bfloat16, "64-true": torch.float64}.get(precision, torch.float32)
    assert whole.model.dtype == wanted
    train(replace(config, steps=2, out=str(tmp_path / "parts")))
    parts = train(replace(config, out=str(tmp_path / "parts")), resume=True)
    assert differences(checkpoint(whole.run, 4), checkpoint(parts.run, 4)) == []


def test_averaged_weights_are_validated_but_not_trained_on(small, tmp_path):
    first = train(small(out=str(tmp_path / "plain")))
    second = train(small(out=str(tmp_path / "averaged"), weight_ema=0.8))
    assert values(first.run, "train/loss") == values(second.run, "train/loss")
    assert values(first.run, "val/psnr") != values(second.run, "val/psnr")


def test_the_last_step_is_validated_and_saved_in_any_case(small):
    result = train(small(steps=5, val_every=3))
    assert [r["step"] for r in records(result.run) if "val/psnr" in r] == [3, 5]
    assert result.latest["step"] == 5
    assert checkpoint(result.run, 5)["step"] == 5


def test_early_stop_after_its_patience(small):
    told = []
    config = small(quantizer="none", learning_rate=1e-30, patience=2, val_every=1)
    result = train(config, say=told.append)
    assert result.step == 3
    assert result.best["step"] == 1
    assert any("early stop" in line for line in told)
    again = train(config, resume=True, say=told.append)
    assert (again.step, told[-1]) == (3, f"{result.run} is already at step 3 of 6: nothing to do")
    assert checkpoint(result.run, 3)["step"] == 3


def test_accumulated_batches_make_one_step_of_the_joined_batch(small, tmp_path):
    joined = train(small(quantizer="none", out=str(tmp_path / "joined"), steps=4))
    parts = train(small(quantizer="none", out=str(tmp_path / "parts"), steps=4, batch_size=2, accumulate=2))
    assert values(parts.run, "val/loss") == pytest.approx(values(joined.run, "val/loss"), rel=1e-4)
    assert checkpoint(parts.run, 4)["step"] == 4


def test_the_adversary_sees_every_accumulated_batch(small, monkeypatch):
    seen, learn = [], Adversary.learn_

    def watched(self, images, rebuilt, *parts):
        seen.append((len(images), len(rebuilt)))
        return learn(self, images, rebuilt, *parts)

    monkeypatch.setattr(Adversary, "learn_", watched)
    train(small(steps=1, batch_size=2, accumulate=3, adversarial_weight=0.5, adversarial_start=1))
    assert seen == [(6, 6)]


def test_logs_and_files_of_a_run(small):
    result = train(small(probe_every=2, tensorboard=True))
    names = {name for record in records(result.run) for name in record}
    assert {f"train/{x}" for x in ("loss", "reconstruction", "quantizer", "psnr", "usage", "perplexity")} <= names
    assert {f"val/{x}" for x in ("loss", "psnr", "ssim", "usage", "perplexity")} <= names
    assert {"drift/latents_moved", "quantizer/drift_followed", "quantizer/relocated"} <= names
    for record in records(result.run):
        if "train/loss" in record:
            total = record["train/reconstruction"] + record["train/quantizer"]
            assert record["train/loss"] == pytest.approx(total, rel=1e-5)
    files = {path.name for path in result.run.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "model", "samples"} <= files
    assert list(result.run.rglob("events.out.tfevents.*"))
    assert [path.name for path in sorted((result.run / "samples").iterdir())][-1] == "step-00000006.png"


def test_epochs_are_counted_on_the_training_images(small):
    config = small(steps=None, epochs=0.5)
    images = len(open_source(config.data, "train", val_share=config.val_share, seed=config.seed))
    assert train(config).step == round(0.5 * images / 4)


def test_a_finished_run_has_nothing_to_resume(small):
    config = small(steps=2)
    first, told = train(config), []
    again = train(config, resume=True, say=told.append)
    assert (again.step, again.best) == (2, first.best)
    assert any("already at step 2 of 2" in line for line in told)


def test_wrong_settings_leave_no_folder(small, tmp_path):
    wrong = {
        "unknown quantizer 'nsvq'": {"quantizer": "nsvq"},
        "no such file or folder": {"data": str(tmp_path / "none")},
        "unknown key in quantizer_options": {"quantizer_options": {"x": 1}},
    }
    for message, changes in wrong.items():
        with pytest.raises(ValueError, match=message):
            train(small(**changes))
        assert not (tmp_path / "run").exists()


def test_a_warm_up_is_a_plain_autoencoder_and_the_codebook_starts_behind_it(small, tmp_path):
    plain = train(small(quantizer="none", steps=3, out=str(tmp_path / "plain"))).model
    warm = train(small(quantizer="ns_vq", steps=3, warm_up=3, out=str(tmp_path / "warm"))).model
    assert differences(plain.encoder.state_dict(), warm.encoder.state_dict()) == []
    assert differences(plain.decoder.state_dict(), warm.decoder.state_dict()) == []
    assert warm.quantizer.step == 0
    assert not warm.quantizer.start.done
    after = train(small(quantizer="ns_vq", steps=5, warm_up=3, out=str(tmp_path / "after"))).model
    assert after.quantizer.start.done
    assert after.quantizer.step == 2


def test_the_codebook_has_its_start_in_the_first_steps_as_in_a_loop_of_ones_own(small, tmp_path):
    """16 latents an image: at 4 per code 40 codes need 160, of three batches of 4 images."""
    seen = []
    settings = small(quantizer="ns_vq", codebook_size=40, steps=3, batch_size=4, out=str(tmp_path / "run"))
    train(settings, probe=Probe((1, 2, 3), lambda model: seen.append(model.quantizer.start.done) or {}))
    assert seen == [False, False, True]


def test_a_probe_sees_the_model_after_its_steps_and_changes_nothing(small, tmp_path):
    seen = {}

    def read(model):
        assert not model.training
        seen[len(seen)] = {name: value.clone() for name, value in model.state_dict().items()}
        torch.rand(3)
        return {"first_code": float(model.quantizer.codebook[0, 0])}

    probed = train(small(steps=4, out=str(tmp_path / "probed")), probe=Probe((2, 4), read)).model
    alone = train(small(steps=4, out=str(tmp_path / "alone"))).model
    half = train(small(steps=2, out=str(tmp_path / "half"))).model
    assert differences(probed.state_dict(), alone.state_dict()) == []
    assert len(seen) == 2
    assert differences(seen[0], half.state_dict()) == []
    found = [(r["step"], r["probe/first_code"]) for r in records(tmp_path / "probed") if "probe/first_code" in r]
    assert found == [(2, float(half.quantizer.codebook[0, 0])), (4, float(alone.quantizer.codebook[0, 0]))]


def test_a_run_goes_on_with_its_images_from_any_folder(tmp_path, monkeypatch):
    make_images(tmp_path / "photos", 2)
    monkeypatch.chdir(tmp_path)
    write_run_files(tmp_path / "run", TrainConfig(data="photos"), 10)
    monkeypatch.chdir(tmp_path / "photos")
    assert resumed_config(tmp_path / "run", {}, {}).data == str(tmp_path / "photos")
    assert resumed_config(tmp_path / "run", {"data": "."}, {}).data == str(tmp_path / "photos")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(tmp_path / "photos"), "."))  # as one may write it by hand
    assert resumed_config(tmp_path / "run", {}, {}).data == str(tmp_path / "photos")


def test_a_resumed_run_says_that_its_images_are_others(small, tmp_path):
    config = small(data=str(make_images(tmp_path / "photos")), steps=2)
    train(config)
    told = []
    train(replace(config, steps=4), resume=True, say=told.append)
    assert not any("changed" in line for line in told)
    sorted((tmp_path / "photos").iterdir())[0].unlink()
    train(replace(config, steps=6), resume=True, say=told.append)
    assert any(line.startswith("the images have changed since: ") for line in told), told


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(tmp_path):
    write_run_files(tmp_path, TrainConfig(checkpoint_every=10), 30)
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 10}\n')
    resumed_config(tmp_path, {}, {})  # it may have been killed while it wrote its first one
    log.write_text('{"step": 10}\n{"step": 20}\n')
    with pytest.raises(ValueError, match=r"the checkpoints of .* are gone, so it cannot go on from step 20"):
        resumed_config(tmp_path, {}, {})


@pytest.mark.parametrize(("settle", "most"), [(0.0, "4 steps"), (0.5, "2 steps before the rest")])
def test_a_warm_up_is_no_longer_than_the_run(small, settle, most, tmp_path):
    with pytest.raises(ValueError, match=f"warm_up must be at most the {most}, got 5"):
        train(small(steps=4, warm_up=5, settle=settle, out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
