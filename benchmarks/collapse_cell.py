"""One run of collapse.py: a small VQ-VAE with one quantizer, trained from the first step and measured."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from collapse_methods import METHODS, PHOTOS, Cell, Method
from driftvq.data import eval_batches, open_source
from driftvq.data.images import to_float, to_uint8
from driftvq.files import replacing, write_text
from driftvq.metrics import evaluate
from driftvq.models import VQVAE, ModelConfig
from driftvq.quantizers import Quantizer

LATENTS_PER_CODE = 50
MARKS = {1024: (100, 300, 600, 1200), 8192: (300,)}
"""Steps at which usage is read on the way, for codebooks of at most so many codes: larger ones need too many images."""
METRICS = ("rfid", "kid", "lpips_alex", "ssim", "psnr")
FID_IMAGES, PSNR_IMAGES = 200, 500
CHUNK = 100
SAVE_EVERY = 300.0
"""Seconds of training after which its state is kept again: an interrupted run goes on from there."""


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train and measure."""
    method = METHODS[cell.method]
    train, val = load_images(cell, "train", folder), load_images(cell, "val", folder)
    torch.manual_seed(cell.seed)
    model = build(cell, method)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), cell.learning_rate)
    generator = torch.Generator().manual_seed(cell.seed)
    kept = Kept(kept_file(cell, folder), model, optimizer, generator)
    done, seconds, history = kept.load() or (-cell.warm_up, 0.0, [])
    marks = next((steps for size, steps in MARKS.items() if cell.codebook_size <= size), ())
    start, saved = time.perf_counter() - seconds, seconds
    for step in range(done + 1, cell.steps + 1):
        images = draw(train, cell.batch_size, generator)
        rebuilt, loss, _ = forward(model, images, cell.latent_scale, quantize=step > 0)
        loss = loss / cell.latent_scale**2 + F.mse_loss(rebuilt, images)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step in marks and step < cell.steps:
            history.append({"step": step, **read(model, cell, train, val)})
        seconds = time.perf_counter() - start
        if seconds - saved >= SAVE_EVERY:
            kept.save(step, seconds, history)
            saved = seconds
    final = read(model, cell, train, val)
    evaluation = evaluate(pairs(model, val[:FID_IMAGES], cell.latent_scale), codebook_size=None, metrics=METRICS)
    return {
        "cell": dataclasses.asdict(cell),
        "seconds": seconds,
        "history": [*history, {"step": cell.steps, **final}],
        "values": {**evaluation.values, **final},
        "principal_spread": principal_spread(model, val[:CHUNK]),
        "readings": {} if model.quantizer is None else model.quantizer.readings(),
        "n": {"psnr": min(PSNR_IMAGES, len(val)), "rfid": evaluation.n},
        "missing": evaluation.missing,
    }


def kept_file(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.key}.part.pt"


@dataclasses.dataclass(frozen=True)
class Kept:
    """The state of a training on disk."""

    path: Path
    model: VQVAE
    optimizer: torch.optim.Optimizer
    generator: torch.Generator

    def save(self, step: int, seconds: float, history: list[dict[str, Any]]) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": (self.generator.get_state(), torch.get_rng_state()),
            "progress": (step, seconds, history),
        }
        with replacing(self.path) as temporary:
            torch.save(state, temporary)

    def load(self) -> tuple[int, float, list[dict[str, Any]]] | None:
        """Put the state back; steps and seconds done and the readings on the way, or None if nothing was kept."""
        if not self.path.is_file():
            return None
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        batches, everything = state["random"]
        self.generator.set_state(batches)
        torch.set_rng_state(everything)
        step, seconds, history = state["progress"]
        return step, seconds, history


def build(cell: Cell, method: Method) -> VQVAE:
    """The model; encoder and decoder are made first, so that they start the same with every quantizer."""
    return VQVAE(
        ModelConfig(
            network="small",
            quantizer=method.quantizer,
            codebook_size=cell.codebook_size,
            code_dim=cell.code_dim,
            quantizer_options=method.options(cell),
        )
    )


def load_images(cell: Cell, split: str, folder: Path) -> Tensor:
    """All images, uint8; kept as an array in the folder of the results, since every run reads them."""
    place = folder / f"images-{cell.data_name}-{split}-{cell.size}.npy"
    if not place.is_file():
        source = open_source(None if cell.data == PHOTOS else cell.data, split, size=cell.size)
        with eval_batches(source, size=cell.size, batch_size=CHUNK) as batches:
            images = torch.cat([batch.images for batch in batches])
        with replacing(place) as temporary, temporary.open("wb") as file:
            np.save(file, images.numpy())
    return torch.from_numpy(np.load(place))


def draw(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A random batch in [-1, 1], half of it mirrored."""
    batch = to_float(images[torch.randint(len(images), (count,), generator=generator)])
    mirrored = torch.rand(count, generator=generator) < 0.5
    batch = torch.where(mirrored[:, None, None, None], batch.flip(3), batch)
    return batch.contiguous(memory_format=torch.channels_last)


def network_input(images: Tensor) -> Tensor:
    """Pixels in [-1, 1], in the memory layout of the network."""
    return to_float(images).contiguous(memory_format=torch.channels_last)


def forward(model: VQVAE, images: Tensor, scale: float, quantize: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """Reconstructions, the quantizer's loss, and indices."""
    latents: Tensor = model.encoder(images) * scale
    loss, indices = latents.new_zeros(()), None
    if quantize and model.quantizer is not None:
        latents, indices, loss = model.quantizer(latents)
    return model.decoder(latents / scale), loss, indices


def read(model: VQVAE, cell: Cell, train: Tensor, val: Tensor) -> dict[str, Any]:
    """PSNR and, with the weights frozen, usage and perplexity over enough latents, if there are as many."""
    rebuilt = [(real, fake) for real, fake, _ in pairs(model, val[:PSNR_IMAGES], cell.latent_scale)]
    error = torch.cat([(a.float() - b.float()).square().mean(dim=(1, 2, 3)) for a, b in rebuilt])
    found = {"psnr": float((10 * torch.log10(255**2 / error)).mean())}
    return found if model.quantizer is None else {**found, **usage(model, cell, train, val)}


def usage(model: VQVAE, cell: Cell, train: Tensor, val: Tensor) -> dict[str, Any]:
    """Over validation images, then mirrored ones, then training images, until there are 50 latents per code."""
    quantizer: Quantizer = model.quantizer  # type: ignore[assignment]
    levels = max(1, quantizer.indices_per_position)
    counts = torch.zeros(levels, cell.codebook_size, dtype=torch.int64)
    parts = {"val": val, "mirrored val": val.flip(3), "train": train, "mirrored train": train.flip(3)}
    used: list[str] = []
    model.eval()
    for name, images in parts.items():
        if counts[0].sum() >= LATENTS_PER_CODE * cell.codebook_size:
            break
        used.append(name)
        for chunk in images.split(CHUNK):
            with torch.no_grad():
                latents = model.encoder(network_input(chunk))
                indices = quantizer(latents * cell.latent_scale).indices.reshape(-1, levels)
            counts += torch.stack([column.bincount(minlength=cell.codebook_size) for column in indices.t()])
            if counts[0].sum() >= LATENTS_PER_CODE * cell.codebook_size:
                break
    model.train()
    share = counts / counts.sum(dim=1, keepdim=True)
    return {
        "usage": float((counts > 0).double().mean(dim=1).min()),
        "perplexity": float(torch.special.entr(share.double()).sum(dim=1).exp().min()),
        "latents_per_code": float(counts[0].sum() / cell.codebook_size),
        "images": ", ".join(used),
    }


@torch.no_grad()
def principal_spread(model: VQVAE, images: Tensor) -> list[float]:
    """Standard deviations of the latents along their principal axes: whether they use all of their dimensions."""
    latents_nd = model.encoder(network_input(images)).movedim(1, -1).flatten(end_dim=-2)
    return [float(value) for value in torch.linalg.eigvalsh(latents_nd.t().cov()).clamp(min=0).sqrt().flip(0)]


@torch.no_grad()
def pairs(model: VQVAE, images: Tensor, scale: float) -> Iterator[tuple[Tensor, Tensor, None]]:
    """Originals and reconstructions, uint8."""
    model.eval()
    for chunk in images.split(CHUNK):
        rebuilt, _, _ = forward(model, network_input(chunk), scale)
        yield chunk, to_uint8(rebuilt), None
    model.train()


def main() -> None:
    torch.set_num_threads(1)
    cell, folder = Cell(**json.loads(sys.argv[1])), Path(sys.argv[2])
    write_text(folder / f"{cell.key}.json", json.dumps(run_cell(cell, folder), indent=1))
    kept_file(cell, folder).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
