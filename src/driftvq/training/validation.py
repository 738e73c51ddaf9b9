"""Which model is validated, what a validation adds up over batches and processes, and which model was the best."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from driftvq.data.folder import TRAIN_FOLDERS, VAL_FOLDERS
from driftvq.data.images import to_uint8
from driftvq.functional.blocks import widest_float
from driftvq.metrics import CodeCounter
from driftvq.metrics.similarity import WINDOW, psnr, ssim
from driftvq.models import VQVAE, save_pretrained
from driftvq.models.vqvae import code_tensors
from driftvq.quantizers import Quantizer
from driftvq.quantizers.distributed import sum_over_processes
from driftvq.records.metric_table import is_better, metric
from driftvq.training.config import TrainConfig


class WeightAverage(AveragedModel):
    """``average ← γ average + (1-γ) weights`` of parameters, as :attr:`module`; codes and buffers are the latest.

    A code that is relocated or replaced jumps, and halfway between its two places it is nobody's. For the first steps γ
    is at most ``(1 + n) / (10 + n)``, so that the average soon forgets the random start.
    """

    module: Any  # what the model is

    def __init__(self, model: nn.Module, decay: float) -> None:
        def average(kept: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
            share = 1 - min(decay, (1 + int(updates)) / (10 + int(updates)))
            for mean, value in zip(kept, weights, strict=True):
                mean.lerp_(value, share)

        super().__init__(model, multi_avg_fn=average)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        mine, theirs = ({name: tensor.shape for name, tensor in m.state_dict().items()} for m in (self.module, model))
        if mine != theirs:  # a k-means start gathers latents: there is no codebook yet to average
            self.module.load_state_dict(model.state_dict())
        super().update_parameters(model)
        for kept, codes in zip(code_tensors(self.module), code_tensors(model), strict=True):
            kept.copy_(codes)


SUMMED = ("loss", "psnr", "ssim")
MOST_PSNR = 100.0


class ValidationSums:
    """Sums of the metrics of images as they would be saved, exchanged on ``device``, and counts of the codes."""

    def __init__(self, quantizer: Quantizer | None, device: torch.device) -> None:
        self.device = device
        self.codes = None if quantizer is None else CodeCounter(quantizer)
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.images = 0

    def update(self, images: Tensor, reconstructions: Tensor, indices: Tensor | None, loss: Tensor) -> None:
        """Add a batch: uint8 images, float reconstructions in [-1, 1], the loss per image."""
        rebuilt = to_uint8(reconstructions)
        # A perfect reconstruction would make the mean infinite.
        self.sums["psnr"] += float(psnr(images, rebuilt, 255).clamp(max=MOST_PSNR).sum())
        self.sums["ssim"] += float(ssim(images, rebuilt, 255).sum()) if min(images.shape[2:]) >= WINDOW else math.nan
        self.sums["loss"] += float(loss) * len(images)
        self.images += len(images)
        if self.codes is not None and indices is not None:
            self.codes.update(indices)

    def result(self) -> dict[str, float]:
        """Means over all images of all processes; NaN without images."""
        local = torch.tensor([*self.sums.values(), self.images], dtype=torch.float64)
        (total,) = sum_over_processes(local.to(widest_float(self.device)).to(self.device))
        *sums, images = total.tolist()
        values = {name: value / images if images else math.nan for name, value in zip(SUMMED, sums, strict=True)}
        if self.codes is not None:
            counts = sum_over_processes(*(counts_k.to(self.device) for counts_k in self.codes.counts))
            self.codes.counts = [counts_k.cpu() for counts_k in counts]
            values |= {"usage": self.codes.usage(), "perplexity": self.codes.perplexity()}
        return {f"val/{name}": value for name, value in values.items() if not math.isnan(value)}


class BestModel:
    """Which validation was the best by ``config.monitor``; its model lies in the folder ``model`` of the run."""

    def __init__(self, run: Path, config: TrainConfig) -> None:
        self.folder, self.config = run / "model", config
        self.best: dict[str, float] = {}  # validation values of the best model, and its step
        self.latest: dict[str, float] = {}
        self.waited = 0  # validations since the best one

    def judge(self, step: int, values: dict[str, float]) -> bool:
        """Note a validation; whether it is the best so far."""
        self.latest = {"step": step, **values}
        name = f"val/{self.config.monitor}"
        if not beats(values.get(name), self.best.get(name), self.config.monitor):
            self.waited += 1
            return False
        self.best, self.waited = dict(self.latest), 0
        return True

    @property
    def patience_is_over(self) -> bool:
        return 0 < self.config.patience <= self.waited

    def save(self, model: VQVAE) -> None:
        found = {name.removeprefix("val/"): value for name, value in self.best.items() if name != "step"}
        values = {metric({"usage": "selected"}.get(name, name)).label: value for name, value in found.items()}
        data, size = name_data(self.config.data), self.config.size
        training = {"step": int(self.best["step"]), "data": data, "image size": size}
        try:
            save_pretrained(model, self.folder, card={"training": training, "validation": values})
        except Exception as error:  # safetensors has an error of its own for a full disk
            raise OSError(f"cannot write the best model to {self.folder}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        return {"best": dict(self.best), "latest": dict(self.latest), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.latest, self.waited = dict(state["best"]), dict(state["latest"]), state["waited"]


def name_data(spec: str | None) -> str:
    """Which images, without the folders of the machine: the path from its last part on that is no split's name."""
    if spec is None:
        return "embedded photographs"
    if spec.startswith("hf:") and not Path(spec.removeprefix("hf:")).exists():
        return spec
    parts = [part for part in Path(spec).parts if part != Path(spec).anchor]
    splits = (*TRAIN_FOLDERS, *VAL_FOLDERS)
    named = [number for number, part in enumerate(parts) if part.partition("-")[0] not in splits]
    return "/".join(parts[named[-1] if named else 0 :])


def beats(value: float | None, best: float | None, name: str) -> bool:
    """Whether a value of a metric beats the best one so far; one that is not finite never does."""
    if value is None or not math.isfinite(value):
        return False
    return best is None or is_better(name, value, best)
