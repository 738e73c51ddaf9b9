"""One run of collapse.py: a small VQ-VAE with one quantizer, trained from the first step and measured.

Shape suffixes: none; images are ``b 3 h w``.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.data import eval_batches, open_source
from driftvq.data.images import to_float, to_uint8
from driftvq.files import replacing, write_text
from driftvq.metrics import evaluate
from driftvq.models import VQVAE, ModelConfig
from driftvq.quantizers import NSVQ, Quantizer, TransVQ, follow

LATENTS_PER_CODE = 50
MARKS = {1024: (100, 300, 600, 1200), 8192: (300,)}
"""Steps at which usage is read on the way, for codebooks of at most so many codes: larger ones need too many images."""
METRICS = ("rfid", "kid", "lpips_alex", "ssim", "psnr")
FID_IMAGES, PSNR_IMAGES = 200, 500
CHUNK = 100
PHOTOS = "photos"


@dataclass(frozen=True)
class Cell:
    """A run: the method, and every setting it depends on.

    Attributes:
        data: a folder with ``train`` and ``val``, or "photos" for the embedded photographs.
        latent_scale: the latents are multiplied by it before the quantizer, the codes divided by it afterwards.
        warm_up: steps as a plain autoencoder, before the quantizer sees its first latent.
    """

    group: str
    method: str
    data: str
    codebook_size: int = 1024
    code_dim: int = 64
    size: int = 32
    steps: int = 2500
    batch_size: int = 16
    learning_rate: float = 5e-4
    latent_scale: float = 1.0
    warm_up: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        """A file name that says everything but the folder of the data and the group."""
        data = PHOTOS if self.data == PHOTOS else "folder"
        return (
            f"{self.method}-{data}-k{self.codebook_size}-d{self.code_dim}-px{self.size}-s{self.steps}-b{self.batch_size}"
            f"-lr{self.learning_rate:g}-x{self.latent_scale:g}-w{self.warm_up}-seed{self.seed}"
        )

    @property
    def latents(self) -> int:
        """Latents per batch."""
        return self.batch_size * (self.size // 4) ** 2


def _nothing(_: Any) -> None:
    pass


@dataclass(frozen=True)
class Method:
    """A contestant: a quantizer, its options (some depend on the run), and what an ablation takes away from it."""

    label: str
    quantizer: str
    options: Callable[[Cell], dict[str, Any]] = lambda _: {}
    change: Callable[[Any], None] = _nothing
    ours: bool = field(default=False)


def _with(**options: Any) -> Callable[[Cell], dict[str, Any]]:
    return lambda _: options


def _replacing(threshold: Callable[[Cell], float]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {"kmeans_init": True, "threshold_ema_dead_code": threshold(cell)}


def _no_drift(quantizer: NSVQ) -> None:
    quantizer.follower._drifted = lambda codes, drift: codes  # type: ignore[union-attr, method-assign]


def _no_relocation(quantizer: NSVQ) -> None:
    quantizer.follower._relocate_ = lambda codes, *_: codes  # type: ignore[union-attr, method-assign]


def _no_shrinking(quantizer: NSVQ) -> None:
    follower: Any = quantizer.follower
    forget = follower._forget_

    def forget_and_trust_(counts: Tensor, drift: Any) -> None:
        forget(counts, drift)
        follower.gain.fill_(1)

    follower._forget_ = forget_and_trust_


def _short_memory(_: NSVQ) -> None:
    follow.MEMORY_SHARE = 0.0  # type: ignore[misc]


def _no_gate(quantizer: TransVQ) -> None:
    pace: Any = quantizer.pace
    forward = pace.forward
    pace.forward = lambda codes, transform, step: forward(codes, transform, torch.full_like(step, math.inf))


def _closed_gate(quantizer: TransVQ) -> None:
    pace: Any = quantizer.pace
    forward = pace.forward
    pace.forward = lambda codes, transform, step: forward(codes, transform, torch.zeros_like(step))


METHODS = {
    "vq": Method("VQ", "vq"),
    "ema": Method("EMA", "ema_vq"),
    "ema_replace": Method("EMA + replacement below 2", "ema_vq", _replacing(lambda _: 2.0)),
    "ema_tuned": Method(
        "EMA + replacement below half of N/K",
        "ema_vq",
        _replacing(lambda cell: 0.5 * cell.latents / cell.codebook_size),
    ),
    "factorized": Method("FactorizedVQ", "factorized_vq"),
    "sim_vq": Method("SimVQ", "sim_vq"),
    "fsq": Method("FSQ", "fsq"),
    "ns_vq": Method("NSVQ", "ns_vq", ours=True),
    "trans_vq": Method("TransVQ", "trans_vq", ours=True),
    "trans_vq_mlp": Method("TransVQ, MLP", "trans_vq", _with(transform="mlp"), ours=True),
    "none": Method("no quantizer: the ceiling", "none"),
    "ns_vq_paper": Method("NS-VQ, as printed", "ns_vq_paper"),
    "trans_vq_paper": Method("TransVQ, as printed", "trans_vq_paper"),
    "ns_vq_random": Method("NSVQ without the k-means start", "ns_vq", _with(kmeans_init=False)),
    "ns_vq_no_drift": Method("NSVQ without the drift", "ns_vq", change=_no_drift),
    "ns_vq_no_shrinking": Method("NSVQ, drift with its noise", "ns_vq", change=_no_shrinking),
    "ns_vq_no_relocation": Method("NSVQ, lost codes stay lost", "ns_vq", change=_no_relocation),
    "ns_vq_short_memory": Method("NSVQ, memory does not grow", "ns_vq", change=_short_memory),
    "trans_vq_mlp_random": Method(
        "TransVQ, MLP without the k-means start", "trans_vq", _with(transform="mlp", kmeans_init=False, follow=True)
    ),
    "trans_vq_mlp_no_follower": Method(
        "TransVQ, MLP, φ alone moves the codes", "trans_vq", _with(transform="mlp", follow=False)
    ),
    "trans_vq_mlp_no_gate": Method("TransVQ, MLP, φ unbounded", "trans_vq", _with(transform="mlp"), change=_no_gate),
    "trans_vq_mlp_no_phi": Method(
        "TransVQ, MLP, φ stands still", "trans_vq", _with(transform="mlp"), change=_closed_gate
    ),
    **{
        f"{name}_{estimator}": Method(
            f"{label}, {estimator}", quantizer, _with(estimator=estimator, **options), ours=True
        )
        for name, label, quantizer, options in (
            ("ns_vq", "NSVQ", "ns_vq", {}),
            ("trans_vq_mlp", "TransVQ, MLP", "trans_vq", {"transform": "mlp"}),
        )
        for estimator in ("rotation", "modified", "gumbel")
    },
    **{
        f"residual_{name}": Method(
            f"ResidualVQ, 8 levels of {label}", "residual_vq", _with(num_quantizers=8, **options), ours=True
        )
        for name, label, options in (
            ("ns_vq", "NSVQ", {"quantizer": "ns_vq"}),
            ("trans_vq_mlp", "TransVQ, MLP", {"quantizer": "trans_vq", "transform": "mlp"}),
        )
    },
}


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train and measure."""
    method = METHODS[cell.method]
    train, val = load_images(cell, "train", folder), load_images(cell, "val", folder)
    torch.manual_seed(cell.seed)
    model = build(cell, method)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), cell.learning_rate)
    generator = torch.Generator().manual_seed(cell.seed)
    history: list[dict[str, float]] = []
    marks = next((steps for size, steps in MARKS.items() if cell.codebook_size <= size), ())
    start = time.perf_counter()
    for step in range(1 - cell.warm_up, cell.steps + 1):
        images = draw(train, cell.batch_size, generator)
        rebuilt, loss, _ = forward(model, images, cell.latent_scale, quantize=step > 0)
        loss = loss / cell.latent_scale**2 + F.mse_loss(rebuilt, images)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step in marks and step < cell.steps:
            history.append({"step": step, **read(model, cell, train, val)})
    seconds = time.perf_counter() - start
    final = read(model, cell, train, val)
    evaluation = evaluate(pairs(model, val[:FID_IMAGES], cell.latent_scale), codebook_size=None, metrics=METRICS)
    return {
        "cell": dataclasses.asdict(cell),
        "seconds": seconds,
        "history": [*history, {"step": cell.steps, **final}],
        "values": {**evaluation.values, **final},
        "n": {"psnr": min(PSNR_IMAGES, len(val)), "rfid": evaluation.n},
        "missing": evaluation.missing,
    }


def build(cell: Cell, method: Method) -> VQVAE:
    """The model; encoder and decoder are made first, so that they start the same with every quantizer."""
    name, preset = method.quantizer, None
    if name.endswith("_paper"):
        name, preset = name.removesuffix("_paper"), "paper"
    model = VQVAE(
        ModelConfig(
            network="small",
            quantizer=name,
            preset=preset,
            codebook_size=cell.codebook_size,
            code_dim=cell.code_dim,
            quantizer_options=method.options(cell),
        )
    )
    method.change(model.quantizer)
    return model


def load_images(cell: Cell, split: str, folder: Path) -> Tensor:
    """All images, uint8; kept as an array in the folder of the results, since every run reads them."""
    place = folder / f"images-{'photos' if cell.data == PHOTOS else 'folder'}-{split}-{cell.size}.npy"
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


def forward(model: VQVAE, images: Tensor, scale: float, quantize: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """Reconstructions, the quantizer's loss, and indices."""
    latents: Tensor = model.encoder(images) * scale
    loss, indices = latents.new_zeros(()), None
    if quantize and model.quantizer is not None:
        latents, indices, loss = model.quantizer(latents)
    return model.decoder(latents / scale), loss, indices


def read(model: VQVAE, cell: Cell, train: Tensor, val: Tensor) -> dict[str, float]:
    """PSNR and, with the weights frozen, usage and perplexity over enough latents, if there are as many."""
    rebuilt = [(real, fake) for real, fake, _ in pairs(model, val[:PSNR_IMAGES], cell.latent_scale)]
    error = torch.cat([(a.float() - b.float()).square().mean(dim=(1, 2, 3)) for a, b in rebuilt])
    found = {"psnr": float((10 * torch.log10(255**2 / error)).mean())}
    return found if model.quantizer is None else {**found, **usage(model, cell, train, val)}


def usage(model: VQVAE, cell: Cell, train: Tensor, val: Tensor) -> dict[str, float]:
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
                latents = model.encoder(to_float(chunk).contiguous(memory_format=torch.channels_last))
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
        "images": ", ".join(used),  # type: ignore[dict-item]
    }


@torch.no_grad()
def pairs(model: VQVAE, images: Tensor, scale: float) -> Iterator[tuple[Tensor, Tensor, None]]:
    """Originals and reconstructions, uint8."""
    model.eval()
    for chunk in images.split(CHUNK):
        rebuilt, _, _ = forward(model, to_float(chunk).contiguous(memory_format=torch.channels_last), scale)
        yield chunk, to_uint8(rebuilt), None
    model.train()


def main() -> None:
    torch.set_num_threads(1)
    cell, folder = Cell(**json.loads(sys.argv[1])), Path(sys.argv[2])
    write_text(folder / f"{cell.key}.json", json.dumps(run_cell(cell, folder), indent=1))


if __name__ == "__main__":
    main()
