"""The log of a run: ``metrics.jsonl``, ``skipped.txt``, pictures in ``samples``, and TensorBoard's events."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from driftvq.data.images import write_image
from driftvq.drift_meter import DriftMeter, DriftReading
from driftvq.metrics import CodeCounter
from driftvq.quantizers import Quantizer
from driftvq.records.runs import METRICS_FILE, SAMPLES, SKIPPED_FILE, append_record, drop_records_after
from driftvq.training.objective import StepOutput


class SkippedImages:
    """Appends each unreadable image once to ``skipped.txt`` of a run, with the reason."""

    def __init__(self, run: Path) -> None:
        self.path = run / SKIPPED_FILE
        self._known = set(self._names())

    def add(self, skipped: Iterable[tuple[str, str]]) -> None:
        lines = {" ".join(name.split()): " ".join(reason.split()) for name, reason in skipped}
        fresh = {name: reason for name, reason in lines.items() if name not in self._known}
        if fresh:
            self._known.update(fresh)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(f"{name}\t{reason}\n" for name, reason in fresh.items())

    def count(self) -> int:
        """How many different images the file lists, those of other processes included."""
        return len(set(self._names()))

    def _names(self) -> list[str]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.partition("\t")[0] for line in lines]


COLUMNS = 8
SHOWN = {  # what a user sees of the log while it is written
    **{"train/loss": "loss {:.4f}", "train/psnr": "PSNR {:.2f} dB", "train/usage": "usage {:.0%}"},
    "val/psnr": "val PSNR {:.2f} dB",
}
# What the two usages are called in TensorBoard: by the latents that they are counted over.
TITLES = {"train/usage": "usage/last_100_steps", "val/usage": "usage/validation_images"}
COUNTED_ELSEWHERE = ("usage", "usage_expected", "recent_usage")  # readings of the drift meter that are not logged twice


class RunLog:
    """Writes values as ``{"step": 100, "train/loss": 0.03, …}`` and, if wanted, for TensorBoard.

    A resumed run forgets what was logged after its checkpoint, at ``step``. Without a run's folder, in other processes
    than the first, nothing is written.
    """

    def __init__(self, run: Path | None, step: int = 0, tensorboard: bool = True) -> None:
        self.latest: dict[str, float] = {}  # the last value of everything that was logged
        self._run, self._path = run, None if run is None else run / METRICS_FILE
        self._events: SummaryWriter | None = None
        if self._path is not None:
            if step == 0:
                self._path.unlink(missing_ok=True)  # of a run that was stopped before its first checkpoint
            drop_records_after(self._path, step)
            if tensorboard:
                self._events = SummaryWriter(str(run), purge_step=step + 1 if step else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.latest |= values
        if self._path is not None:
            append_record(self._path, step, values)
        if self._events is not None:
            for name, value in values.items():
                if math.isfinite(value):
                    self._events.add_scalar(TITLES.get(name, name), value, step)

    def write_drift(self, step: int, reading: DriftReading, meter: DriftMeter) -> None:
        """Log a reading of the drift meter as ``drift/…``, the use and the age of the codes as histograms."""
        values = {name: value for name, value in reading.to_dict().items() if name not in COUNTED_ELSEWHERE}
        self.write(step, {f"drift/{name}": value for name, value in values.items() if math.isfinite(value)})
        if self._events is not None and meter.counts is not None and len(meter.counts) > 0:
            self._events.add_histogram("codes/selected_by_probe", meter.counts.cpu(), step)
        age = getattr(meter.quantizer, "code_age", None)
        if self._events is not None and age is not None:
            self._events.add_histogram("codes/age", age.cpu(), step)

    def write_sample(self, step: int, originals: Tensor, rebuilt: Tensor) -> None:
        """Show images over their reconstructions, uint8 both: in ``samples/step-00000100.png`` and in TensorBoard."""
        if self._run is None:
            return
        picture = pair_grid(originals, rebuilt)
        (self._run / SAMPLES).mkdir(exist_ok=True)
        write_image(self._run / SAMPLES / f"step-{step:08d}.png", picture)
        if self._events is not None:
            self._events.add_image("reconstructions", picture, step, dataformats="HWC")

    def flush(self) -> None:
        """What was logged before a checkpoint is on the disk before the checkpoint is."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def training_values(output: StepOutput, quantizer: Quantizer | None, discriminator: Tensor | None) -> dict[str, float]:
    """What is logged of a training step; reading it waits for the device."""
    with torch.no_grad():
        mse = float((output.rebuilt - output.images).square().mean())
    losses = {"loss": output.loss, "reconstruction": output.reconstruction, "quantizer": output.quantizer}
    values = {f"train/{name}": float(loss.detach()) for name, loss in losses.items()}
    values["train/psnr"] = 10 * math.log10(4 / max(mse, 1e-12))
    if discriminator is not None:
        values["train/discriminator"] = float(discriminator)
    if quantizer is not None and output.indices is not None:
        codes = CodeCounter(quantizer)
        codes.update(output.indices)
        values |= {"train/usage": quantizer.recent_usage(), "train/perplexity": codes.perplexity()}
        values |= {f"quantizer/{name}": value for name, value in quantizer.readings().items()}
    return values


def shown_values(values: Mapping[str, float], validation: bool = True) -> str:
    """Loss, PSNR and usage in words, as far as they were logged."""
    names = [name for name in SHOWN if name in values and (validation or not name.startswith("val/"))]
    return " · ".join(SHOWN[name].format(values[name]) for name in names)


def pair_grid(originals: Tensor, rebuilt: Tensor, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """One picture ``(h, w, 3)`` of uint8 images ``(b, 3, h, w)``: each row of originals over its reconstructions."""
    columns = min(columns, len(originals))
    bands = []
    for start in range(0, len(originals), columns):
        for images in (originals, rebuilt):
            row = images[start : start + columns]
            missing = images.new_full((columns - len(row), *images.shape[1:]), 255)
            bands.append(torch.cat([*row, *missing], dim=2))
    picture: NDArray[np.uint8] = torch.cat(bands, dim=1).permute(1, 2, 0).contiguous().numpy()
    return picture
