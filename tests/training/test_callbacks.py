import io
import json
import math
import re

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from driftvq.data.images import to_float, to_uint8
from driftvq.json_files import read_records
from driftvq.models import VQVAE, ModelConfig
from driftvq.training.callbacks import DriftCallback, JsonlLogger, LiveProgress, SampleImages
from driftvq.training.callbacks.progress import progress_line
from driftvq.training.callbacks.samples import pair_grid
from driftvq.training.records import append_record, drop_records_after

IMAGES = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Module(LightningModule):
    """A tokenizer in training, as small as can be."""

    def __init__(self, quantizer="ns_vq", **options):
        super().__init__()
        torch.manual_seed(0)
        config = ModelConfig(quantizer=quantizer, codebook_size=32, code_dim=8, quantizer_options=options)
        self.model = VQVAE(config)
        if quantizer != "none":
            self.model(to_float(IMAGES))  # the k-means start

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)

    def training_step(self, images, index):
        output = self.model(to_float(images))
        mse = (output.images - to_float(images)).square().mean()
        loss = mse + output.loss
        self.log_dict({"train/loss": loss, "train/psnr": 10 * torch.log10(4 / mse), "train/usage": 0.5})
        return loss


def fit(module, run, callbacks, steps, checkpoint=None, **options):
    images = IMAGES[:4].repeat(steps, 1, 1, 1)  # always the same batch, so that a loader need not be resumed
    loggers = [c for c in callbacks if isinstance(c, JsonlLogger)] + options.pop("loggers", [])
    trainer = Trainer(
        default_root_dir=run,
        max_steps=steps,
        accelerator="cpu",
        logger=loggers,
        callbacks=callbacks,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, DataLoader(images, batch_size=4), ckpt_path=checkpoint, weights_only=True)
    return trainer


def drift_lines(run):
    return [r for r in read_records(run / "metrics.jsonl") if "drift/usage" in r]


def test_drift_is_read_before_the_first_step_and_every_so_often(tmp_path):
    callback = DriftCallback(IMAGES, every=3)
    fit(Module(), tmp_path, [callback, JsonlLogger(tmp_path)], steps=7)
    lines = drift_lines(tmp_path)
    assert [line["step"] for line in lines] == [0, 3, 6]
    assert "drift/latents_moved" not in lines[0]
    assert lines[2]["drift/interval"] == 3
    assert lines[2]["drift/latents_moved"] > 0
    assert lines[2] == {"step": 6} | {f"drift/{k}": v for k, v in callback.reading.to_dict().items() if v == v}


def test_drift_readings_change_no_weight(tmp_path):
    modules = [Module(), Module()]
    fit(modules[0], tmp_path, [], steps=5)
    fit(modules[1], tmp_path, [DriftCallback(IMAGES, every=1), SampleImages(IMAGES, every=1)], steps=5)
    states = [module.state_dict() for module in modules]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_resumed_run_has_the_same_lines_as_an_uninterrupted_one(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit(Module(), whole, [DriftCallback(IMAGES, every=2), JsonlLogger(whole)], steps=8)

    callbacks = [DriftCallback(IMAGES, every=2), JsonlLogger(parts)]
    trainer = fit(Module(), parts, callbacks, steps=3)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    # The run went on and was killed while it wrote a line.
    append_record(parts / "metrics.jsonl", 4, {"drift/usage": 9.0})
    with (parts / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/lo')
    callbacks = [DriftCallback(IMAGES, every=2), JsonlLogger(parts)]
    fit(Module(), parts, callbacks, steps=8, checkpoint=tmp_path / "last.ckpt")
    assert drift_lines(parts) == drift_lines(whole)
    assert drift_lines(parts)[-1]["step"] == 8


def test_a_plain_autoencoder_is_read_too(tmp_path):
    fit(Module("none"), tmp_path, [DriftCallback(IMAGES, every=1), JsonlLogger(tmp_path)], steps=2)
    lines = [r for r in read_records(tmp_path / "metrics.jsonl") if "drift/latents_moved" in r]
    assert [line["step"] for line in lines] == [1, 2]
    assert "drift/usage" not in lines[0]


def test_tensorboard_has_scalars_histograms_and_pictures(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    fit(Module(), tmp_path, [DriftCallback(IMAGES, every=2), SampleImages(IMAGES, every=2)], 4, loggers=[logger])
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "histograms": 0, "scalars": 0}).Reload()
    tags = events.Tags()
    assert {"drift/usage", "drift/follow_unselected", "train/loss"} <= set(tags["scalars"])
    assert {"codes/selected_by_probe", "codes/age"} == set(tags["histograms"])
    assert [e.step for e in events.Images("reconstructions")] == [2, 4]
    latents = events.Histograms("codes/selected_by_probe")[-1].histogram_value
    assert latents.num == 32
    assert latents.sum == 5 * 4 * 4


def test_samples_are_originals_over_what_the_model_gives_back(tmp_path):
    module = Module()
    fit(module, tmp_path, [SampleImages(IMAGES, every=2)], steps=3)
    files = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert files == ["step-00000002.png", "step-00000003.png"]
    picture = np.asarray(Image.open(tmp_path / "samples" / files[-1]))
    expected = to_uint8(module.model.reconstruct(to_float(IMAGES)))
    assert picture.shape == (32, 80, 3)
    for number in range(5):
        columns = slice(16 * number, 16 * number + 16)
        assert np.array_equal(picture[:16, columns], IMAGES[number].permute(1, 2, 0))
        assert np.array_equal(picture[16:, columns], expected[number].permute(1, 2, 0))


def test_a_grid_pads_its_last_row():
    originals, rebuilt = IMAGES, 255 - IMAGES
    grid = pair_grid(originals, rebuilt, columns=3)
    assert grid.shape == (64, 48, 3)
    assert np.array_equal(grid[32:48, 16:32], originals[4].permute(1, 2, 0))
    assert np.array_equal(grid[48:, 16:32], rebuilt[4].permute(1, 2, 0))
    assert (grid[32:, 32:] == 255).all()


@pytest.mark.parametrize("make", [DriftCallback, SampleImages])
def test_every_is_checked(make):
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        make(IMAGES, 0)


def test_records_are_valid_json_and_keep_what_is_finite(tmp_path):
    logger = JsonlLogger(tmp_path / "run")
    logger.log_metrics({"a": math.nan, "b": torch.tensor(0.5), "c": -math.inf, "d": 3, "e": np.float32(0.25)}, 7)
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert line.endswith("\n")
    assert json.loads(line) == {"step": 7, "a": None, "b": 0.5, "c": None, "d": 3, "e": 0.25}


@pytest.mark.parametrize("torn", ["", '{"step": 9, "a"', "17\n", "\x00\x00\x00", '{"a": 1}\n'])
def test_records_after_a_step_are_dropped_and_so_is_a_torn_line(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 2, 3, 4):
        append_record(path, step, {"a": step / 3})
    with path.open("a") as file:
        file.write(torn)
    assert [r["step"] for r in read_records(path)] == [1, 2, 2, 3, 4]
    drop_records_after(path, 2)
    assert [r["step"] for r in read_records(path)] == [1, 2, 2]
    assert read_records(path)[1]["a"] == 2 / 3
    append_record(path, 3, {})
    assert len(path.read_text().splitlines()) == 4
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_rewrite_leaves_the_records_as_they_were(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    append_record(path, 5, {"a": 1})
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        drop_records_after(path, 1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_records_is_no_error(tmp_path):
    assert read_records(tmp_path / "none.jsonl") == []
    drop_records_after(tmp_path / "none.jsonl", 0)
    assert not (tmp_path / "none.jsonl").exists()


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    fit(Module(), tmp_path, [LiveProgress()], steps=4)
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("step")]
    assert re.fullmatch(r"step 1/4 · [\d.]+ steps/s · \d+:\d\d left · loss \d.* · PSNR .* dB · usage 50%", lines[0])
    assert len(lines) == 2
    assert lines[1].startswith("step 4/4 · ")
    assert "step" not in captured.out


@pytest.mark.parametrize(("columns", "end"), [(80, "usage 50%"), (120, "usage 50% · val PSNR 21.50 dB")])
def test_progress_is_a_bar_in_a_terminal(tmp_path, monkeypatch, columns, end):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class Validated(Module):
        def training_step(self, images, index):
            self.log("val/psnr", 21.5)
            return super().training_step(images, index)

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    fit(Validated(), tmp_path, [LiveProgress()], steps=4)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    last = shown.rstrip().rpartition("\r")[2].rstrip()
    assert re.fullmatch(rf"━+ 4/4 [\d.]+/s 0:00:00 loss \d.* · PSNR \d.* dB · {end}", last)
    assert len(last) <= columns


def test_progress_line_of_an_unknown_length():
    assert progress_line(7, None, 2.0, "loss 0.1000") == "step 7 · 2.0 steps/s · loss 0.1000"
    assert progress_line(100, 8100, 1.0, "") == "step 100/8100 · 1.0 steps/s · 2:13:20 left"
