"""What is measured of a trained model: the metrics, how often codes are used, where they lie, and what it all cost.

Shape suffixes: k codes, n latents, d dimensions.
"""

import math
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from driftvq.data import Batches, eval_batches, read_image, to_float, to_uint8, write_image
from driftvq.metrics import CodeCounter, Evaluation, evaluate
from driftvq.models import VQVAE
from driftvq.models.running import model_pairs
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.records.comparisons import ORIGINALS, RECONSTRUCTIONS, Codes
from driftvq.records.metric_table import CODE_METRICS, LATENTS_PER_CODE
from driftvq.training.config import TrainConfig
from driftvq.training.run import open_images

BATCH = 16
MOST_CODES, MOST_LATENTS = 2000, 500


def batches_of(config: TrainConfig, split: str, limit: int | None, batch_size: int = BATCH) -> Batches:
    """Images of a run, as they are evaluated; at most ``limit``, evenly spaced."""
    return eval_batches(open_images(config, split), size=config.size, batch_size=batch_size, limit=limit)


def measure(
    model: VQVAE, config: TrainConfig, images: int | None, metrics: Sequence[str], batch_size: int = BATCH
) -> Evaluation:
    """Evaluate a model on images that its run holds out, at most so many."""
    device = next(model.parameters()).device
    names = [name for name in metrics if model.quantizer is not None or name not in CODE_METRICS]
    with batches_of(config, "val", images, batch_size) as batches:
        return evaluate(
            model_pairs(model, batches, device), codebook_size=model.quantizer, metrics=names, device=device
        )


def rebuild(folder: Path, model: VQVAE) -> Tensor:
    """Write the reconstructions of the comparison's originals, and return these in [-1, 1]."""
    paths = sorted((folder.parent.parent / ORIGINALS).glob("*.png"))
    pixels = torch.from_numpy(np.stack([read_image(path) for path in paths])).permute(0, 3, 1, 2)
    images = to_float(pixels).to(next(model.parameters()).device)
    rebuilt = to_uint8(model.reconstruct(images))
    (folder / RECONSTRUCTIONS).mkdir(exist_ok=True)
    for path, image in zip(paths, rebuilt.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
        write_image(folder / RECONSTRUCTIONS / path.name, image)
    return images


class UsageProbe:
    """Usage and perplexity over enough latents for each code, as far as there are as many.

    A code that few latents select looks dead to few images. So enough are counted of held-out images and, since latents
    of one image are alike, as many of training images, from everywhere among them: codes that the first of a sorted
    folder do not need would look dead, too. If either are too few, the same mirrored follow.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.over, self.latents = "", 0  # what the latest reading counted, for readers, and how many
        self.counts: Tensor | None = None  # how often they selected each code ``(k,)``, in all codebooks together

    def read(self, model: VQVAE) -> dict[str, float]:
        """``usage`` and ``perplexity``, the mean over codebooks if there are several; nothing without a quantizer."""
        if model.quantizer is None:
            return {}
        counter, used, positions = CodeCounter(model.quantizer), dict[str, None](), 0
        wanted = LATENTS_PER_CODE * counter.codebook_size
        limit = -(-wanted // math.prod(model.grid_size((self.config.size, self.config.size))))
        for split in ("val", "train"):
            needed = positions + wanted
            for name, images in self._images(split, limit):
                used[name] = None
                indices = model.encode(to_float(images).to(next(model.parameters()).device))
                counter.update(indices)
                positions += indices.shape[:3].numel()
                if positions >= needed:
                    break
        self.latents, self.counts = positions, torch.stack(counter.counts).sum(dim=0)
        self.over = f"{self.latents / counter.codebook_size:.0f} latents per code ({', '.join(used)})"
        return {"usage": counter.usage(), "perplexity": counter.perplexity()}

    def _images(self, split: str, limit: int) -> Iterator[tuple[str, Tensor]]:
        name = "held-out images" if split == "val" else "training images"
        for mirrored in (False, True):
            with batches_of(self.config, split, limit) as batches:
                for batch in batches:
                    yield (f"mirrored {name}", batch.images.flip(3)) if mirrored else (name, batch.images)


def readings(model: VQVAE, latents_nd: Tensor) -> dict[str, float]:
    """What the quantizer of a model just trained says of itself, and whether the latents use all their dimensions."""
    covariance_dd = latents_nd.cpu().double().t().cov().reshape(latents_nd.shape[1], -1)
    spread_d = torch.linalg.eigvalsh(covariance_dd).clamp(min=0).sqrt()
    found = {} if model.quantizer is None else model.quantizer.readings()
    return {**found, "thinnest": float(spread_d[0] / spread_d[-1].clamp(min=1e-300))}


@torch.no_grad()
def describe_codes(model: VQVAE, counts: Tensor, images: Tensor) -> Codes:
    """How often codes were selected, and where they and latents of images lie; of several codebooks the first."""
    quantizer = model.quantizer
    assert quantizer is not None
    codebook = quantizer.codebook.detach().float().cpu()
    codes_kd = codebook.reshape(-1, *codebook.shape[-2:])[0]
    shown = torch.linspace(0, len(codes_kd) - 1, min(len(codes_kd), MOST_CODES)).round().long()
    latents_nd = codes_kd[:0]  # none, unless the quantizer compares latents with its codes
    if isinstance(quantizer, CodebookQuantizer):
        rows_nd = model.latents(images).movedim(1, -1).reshape(-1, quantizer.dim).float()
        latents_nd = quantizer.to_code_space(quantizer.project_in(rows_nd)).float().cpu()
    latents_nd = latents_nd[torch.linspace(0, len(latents_nd) - 1, min(len(latents_nd), MOST_LATENTS)).long()]
    places = flattened(torch.cat([codes_kd[shown], latents_nd]))
    parts = (counts, places[: len(shown)], shown, places[len(shown) :])
    return Codes(*(tuple(part.tolist()) for part in parts))


def flattened(points_nd: Tensor) -> Tensor:
    """The two principal components ``(n, 2)``, with four digits; a second one of 0 for one dimension."""
    centred_nd = (points_nd - points_nd.mean(dim=0)).double()
    _, axes_dd = torch.linalg.eigh(centred_nd.t() @ centred_nd)
    places_n2: Tensor = centred_nd @ axes_dd.flip(1)[:, :2]
    if places_n2.shape[1] < 2:
        places_n2 = torch.cat([places_n2, torch.zeros_like(places_n2)], dim=1)
    scale = float(places_n2.abs().max()) or 1.0
    rounded_n2: Tensor = (places_n2 / scale * 1e4).round() * (scale / 1e4)
    return rounded_n2


def peak_memory_mb() -> float:
    """The most memory that this process has had so far: of its GPU if it uses one, else of the machine."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
