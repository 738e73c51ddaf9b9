"""What a validation adds up, over batches and processes."""

import math

import torch
from torch import Tensor

from driftvq.data.images import to_uint8
from driftvq.functional import perplexity, usage
from driftvq.functional.precision import widest_float
from driftvq.metrics.psnr import psnr
from driftvq.metrics.ssim import WINDOW, ssim
from driftvq.metrics.usage import CodeCounter
from driftvq.quantizers import Quantizer
from driftvq.quantizers.distributed import sum_over_processes

SUMMED = ("loss", "psnr", "ssim")


class ValidationSums:
    """Sums of the metrics of images as they would be saved, and counts of the codes.

    Args:
        quantizer: whose codes are counted; None if there are none.
        device: where sums are exchanged between processes.
    """

    def __init__(self, quantizer: Quantizer | None, device: torch.device) -> None:
        self.device = device
        self.codes = None if quantizer is None else CodeCounter(quantizer.codebook_size)
        self.places = 1 if quantizer is None else max(1, quantizer.indices_per_position)
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.images = 0

    def update(self, images: Tensor, reconstructions: Tensor, indices: Tensor | None, loss: Tensor) -> None:
        """Add a batch: uint8 images, float reconstructions in [-1, 1], the loss per image."""
        rebuilt = to_uint8(reconstructions)
        # A perfect reconstruction would make the mean infinite.
        self.sums["psnr"] += float(psnr(images, rebuilt, 255).clamp(max=MOST_PSNR).sum())
        small = min(images.shape[2:]) < WINDOW
        self.sums["ssim"] += math.nan if small else float(ssim(images, rebuilt, 255).sum())
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
            counts = self.codes.counts_qk
            if counts is None:
                counts = torch.zeros(self.places, self.codes.codebook_size, dtype=torch.int64)
            (counts,) = sum_over_processes(counts.to(self.device))
            counts = counts.cpu()
            values["usage"] = _mean([float(usage(counts_k)) for counts_k in counts])
            values["perplexity"] = _mean([float(perplexity(counts_k)) for counts_k in counts])
        return {f"val/{name}": value for name, value in values.items() if not math.isnan(value)}


MOST_PSNR = 100.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
