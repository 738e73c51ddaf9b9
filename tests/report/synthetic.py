"""A comparison as an engine would write it, with numbers that look real and text that is out to do harm."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from driftvq.records.codec import write_record
from driftvq.records.comparisons import (
    CELLS,
    CODES_FILE,
    COMPARISON_FILE,
    LOG_FILE,
    ORIGINALS,
    RECONSTRUCTIONS,
    Cell,
    Codes,
    Comparison,
    Group,
    Method,
    Paper,
    PaperRow,
    Place,
    Status,
    Sweep,
    write_cell,
)
from driftvq.records.runs import METRICS_FILE, weights_hash

EVIL = "<script>alert(1)</script>"
EVIL_FOLDER = "ns_vq--k64-d64-b16--seed0 <img src=x onerror=alert(2)>"

METHODS: tuple[tuple[str, str, Group, float, tuple[float, ...] | None], ...] = (
    # name, label, group, quality (0 bad … 1 good), share of codes alive at K = 64, 1024, 8192
    ("ns_vq", "NS-VQ (driftvq default)", "ours", 0.97, (1.0, 1.0, 0.93)),
    ("trans_vq", "TransVQ (driftvq default)", "ours", 0.95, (1.0, 0.99, 0.88)),
    ("ns_vq_paper", "NS-VQ", "paper", 0.90, (1.0, 0.92, 0.61)),
    ("trans_vq_mlp_paper", "TransVQ-MLP", "paper", 0.86, (1.0, 0.97, 0.72)),
    ("vq", f"vanilla VQ {EVIL}", "peer", 0.35, (0.7, 0.06, 0.007)),
    ("ema_vq", "VQVAE2 (EMA)", "peer", 0.72, (1.0, 0.55, 0.12)),
    ("sim_vq", "SimVQ", "peer", 0.88, (1.0, 1.0, 0.97)),
    ("none", "plain autoencoder", "reference", 1.25, None),
)
KMEANS: tuple[str, str, Group, float, tuple[float, ...]] = (
    *("kmeans_afterwards", "No quantizer, k-means afterwards", "reference"),
    *(1.4, (1.0, 1.0, 0.99)),
)
SIZE = 64
STEPS = 2000


def write_comparison(
    folder: Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    sweep: tuple[int, ...] | None = (64, 1024, 8192),
    name: str = f"photographs {EVIL}",
    shift: float = 0.0,
    images: int = 6,
    size: int = SIZE,
    trouble: bool = True,
    kmeans: bool = False,
) -> Path:
    """Write a comparison: one failed cell and one running, a metric that nobody knows, notes that are markup.

    With ``kmeans`` there is a reference with codes and without a training of its own, better than all others.
    """
    methods = (*METHODS, KMEANS) if kmeans else METHODS
    rng = np.random.default_rng(7)
    (folder / ORIGINALS).mkdir(parents=True)
    originals = [picture(i, size) for i in range(images)]
    for i, image in enumerate(originals):
        image.save(folder / ORIGINALS / f"{i:02}.png")
    places: list[Place] = []
    for method, _, _, quality, alive in methods:
        points: tuple[int | None, ...] = (None,) if sweep is None or alive is None else sweep
        for point in points:
            size_k = None if alive is None else (point or 1024)
            share = 1.0 if alive is None else alive[(64, 1024, 8192).index(size_k)]
            gain = 0.0 if size_k is None else np.log2(size_k * share) / 13 - 0.77
            for seed in seeds:
                score = quality + 0.35 * gain + shift + rng.normal(0, 0.012)
                cell = (
                    folder
                    / CELLS
                    / (EVIL_FOLDER if (method, point, seed) == ("ns_vq", 64, 0) else f"{method}--{point}--seed{seed}")
                )
                status: Status = "done"
                if trouble and (method, seed) == ("ema_vq", seeds[-1]) and point == points[-1]:
                    status = "failed"
                if trouble and (method, seed) == ("none", seeds[-1]):
                    status = "running"
                places.append(Place(method, point, seed))
                write_results(cell, places[-1], status, score, share, size_k, originals, rng)
    if kmeans:
        for path in folder.glob(f"{CELLS}/kmeans*/{METRICS_FILE}"):
            path.write_text(json.dumps({"step": STEPS, "val/psnr": 22.0, "val/usage": 0.86}) + "\n")
    found = tuple(Method(m, label, group) for m, label, group, _, _ in methods)
    write_record(folder / COMPARISON_FILE, describe(folder, seeds, sweep, name, places, found))
    return folder


def describe(
    folder: Path,
    seeds: tuple[int, ...],
    sweep: tuple[int, ...] | None,
    name: str,
    places: list[Place],
    methods: tuple[Method, ...],
) -> Comparison:
    point = sweep and 1024
    return Comparison(
        folder=folder,
        name=name,
        recipe="compare",
        title="Which quantizer keeps its codes alive?",
        scale="laptop",
        question="Which quantizer reconstructs best when the encoder drifts, and which codebooks die?",
        command=f"driftvq compare --scale laptop --seeds {len(seeds)} --name '{name}'",
        created="2026-11-16T01:02:03+00:00",
        seeds=seeds,
        metrics=("kid", "lpips_alex", "rfid", "ssim", "psnr", "usage", "perplexity"),
        sweep=None if sweep is None else Sweep("codebook_size", sweep, "codebook size K"),
        methods=methods,
        places=tuple(places),
        environment={"driftvq": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11", "cpu": EVIL, "cores": 2, "git": None},
        data={"source": "embedded photographs", "train": 1152, "evaluation": 256, "size": 64},
        config={"steps": STEPS, "batch_size": 16, "learning_rate": 2e-4, "network": "small", "note": EVIL},
        paper=Paper(
            "Table 3, D = 64",
            "CelebA-HQ 256×256, 40 epochs, batch 16, network of Tab. 1",
            (
                PaperRow("ns_vq_paper", "NS-VQ", point, {"rfid": 21.3, "usage": 1.0}),
                PaperRow("trans_vq_mlp_paper", "TransVQ-MLP", point, {"rfid": 20.9}),
                PaperRow("vq", "Vanilla VQ", point, {"rfid": 55.1, "usage": 0.04}),
                PaperRow("sim_vq", "SimVQ", point, {"rfid": 24.8, "usage": 1.0}),
            ),
        ),
        notes=("rFID at n < 1,000 says little: read KID first.", f"A note {EVIL} & more \u2028 text"),
    )


def write_results(
    folder: Path,
    place: Place,
    status: Status,
    score: float,
    share: float,
    codebook_size: int | None,
    originals: list[Image.Image],
    rng: np.random.Generator,
) -> None:
    (folder / RECONSTRUCTIONS).mkdir(parents=True)
    (folder / LOG_FILE).write_text("…\n")
    share = min(1.0, max(0.004, share + rng.normal(0, 0.01) * (share < 1)))
    done = status == "done"
    values = {
        "kid": 0.16 * np.exp(-2.1 * score) + rng.normal(0, 0.0004),
        "kid_std": 0.002,
        "lpips_alex": 0.62 * np.exp(-1.2 * score),
        "rfid": 210 * np.exp(-1.25 * score),
        "ssim": 1 - 0.5 * np.exp(-0.9 * score),
        "psnr": 17 + 7 * score,
        "sharpness <b>": 0.3 + 0.2 * score,
    }
    if codebook_size is not None:
        values |= {"usage": share, "perplexity": max(1.0, 0.72 * share * codebook_size), "selected": 0.87 * share}
        values |= {"relocated": 30.0, "drift_followed": 0.6} if place.method == "ns_vq" else {}
    write_cell(
        Cell(
            folder,
            place.method,
            place.point,
            place.seed,
            status,
            error=f"RuntimeError: no space left on device {EVIL}" if status == "failed" else None,
            config={"quantizer": place.method, "note": EVIL},
            values={key: float(value) for key, value in values.items()} if done else {},
            n=256 if done else None,
            usage_over="50 latents per code (held-out images, training images)" if done and codebook_size else None,
            usage_latents=50 * codebook_size if done and codebook_size else None,
            missing=("ms_ssim: 64 px are too small for five scales",) if done else (),
            codebook_size=codebook_size,
            code_dim=64,
            seconds={"train": 61 + 9 * rng.random(), "evaluate": 14.0} if done else {},
            steps=STEPS,
            ms_per_step=30 + 3 * rng.random() + (codebook_size or 0) / 800 + 6 * place.method.startswith("trans"),
            peak_memory_mb=540 + (codebook_size or 0) / 20,
            parameters={"network": 691203, "quantizer": 64 * (codebook_size or 0)},
        )
    )
    write_curve(folder / METRICS_FILE, score, share, codebook_size, rng, STEPS if done else STEPS // 3)
    if done:
        if codebook_size is not None:
            write_record(folder / CODES_FILE, codes(codebook_size, share, rng))
        for i, image in enumerate(originals):
            blurred = image.filter(ImageFilter.GaussianBlur(float(max(0.01, 2.2 - 1.9 * score)) * image.width / 64))
            noise = rng.normal(0, max(1.0, 16 - 14 * score), (*image.size, 3))
            pixels = np.clip(np.asarray(blurred) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / RECONSTRUCTIONS / f"{i:02}.png")


def write_curve(
    path: Path, score: float, share: float, codebook_size: int | None, rng: np.random.Generator, last: int
) -> None:
    lines = []
    for step in range(0, last + 1, 25):
        t = step / STEPS
        record: dict[str, Any] = {"step": step, "train/loss": 0.4 * np.exp(-4 * t) + 0.05 + 0.01 * rng.random()}
        if step % 50 == 0:
            record["val/psnr"] = 12 + (5 + 7 * score) * (1 - np.exp(-5 * t)) + rng.normal(0, 0.08)
        if codebook_size is not None:
            record["train/usage"] = float(np.clip(share + (0.3 - share) * np.exp(-9 * t), 0, 1))
            record |= {"quantizer/relocated": 30 * t, "quantizer/drift_followed": 0.9 - 0.3 * t}
        if step % 50 == 0 and codebook_size is not None:
            record["val/usage"] = float(np.clip(share + (0.25 - share) * np.exp(-6 * t) + rng.normal(0, 0.005), 0, 1))
            record["val/perplexity"] = 0.7 * record["val/usage"] * codebook_size
        if step % 100 == 0:
            record |= drift(t, share, step, rng)
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + '\n{"step": 99999, "val/p')  # what a crash leaves


def drift(t: float, share: float, step: int, rng: np.random.Generator) -> dict[str, float | None]:
    if step == 0:
        return {"drift/latents_moved": None, "drift/latent_spread": 0.25}
    return {
        "drift/latents_moved": 200.0 if step == 100 else 0.5 * np.exp(-3 * t) + 0.03 + 0.01 * rng.random(),
        "drift/cells_changed": 0.6 * np.exp(-2 * t) + 0.1 + 0.02 * rng.random(),
        "drift/follow_selected": 0.9 + 0.05 * rng.normal(),
        "drift/follow_unselected": -40.0 if step == 1500 else share * 0.9 + 0.04 * rng.normal(),
        "drift/older_than_1000": max(0.0, 1 - share) * (step > 1000),
        "drift/quantization_error": 0.4 * np.exp(-3 * t) + 0.1,
        "drift/perplexity": 9 * share,
        "drift/wobble <i>": rng.random(),
    }


def codes(codebook_size: int, share: float, rng: np.random.Generator) -> Codes:
    alive = max(1, round(share * codebook_size))
    weights = np.exp(-2.5 * np.linspace(0, 1, alive) ** 1.3) * rng.uniform(0.6, 1.4, alive)
    counts = np.zeros(codebook_size, dtype=int)
    chosen = rng.permutation(codebook_size)[:alive]
    counts[chosen] = 1 + (65536 * weights / weights.sum()).astype(int)
    latents = rng.normal(0, 1, (500, 2)) * [1.6, 1.0] + rng.choice([-1.6, 1.4], (500, 1)) * [1.0, 0.5]
    shown = np.unique(np.linspace(0, codebook_size - 1, min(2000, codebook_size)).astype(int))
    near = latents[rng.integers(500, size=len(shown))] + rng.normal(0, 0.25, (len(shown), 2))
    far = rng.normal([-3.4, 2.4], 0.35, (len(shown), 2))
    points = np.where(counts[shown, None] > 0, near, far)
    return Codes(
        counts=tuple(counts.tolist()),
        points=tuple(points.round(4).tolist()),
        point_codes=tuple(shown.tolist()),
        latents=tuple(latents.round(4).tolist()),
    )


def picture(i: int, size: int) -> Image.Image:
    """A scene with smooth parts, edges and texture."""
    rng = np.random.default_rng(100 + i)
    y, x = np.mgrid[0:size, 0:size] / size
    sky, ground = rng.uniform(60, 240, (2, 3))
    image = sky * (1 - y[..., None]) + ground * y[..., None]
    for _ in range(5):
        cx, cy, radius = rng.uniform([0.1, 0.1, 0.06], [0.9, 0.9, 0.28])
        inside = ((x - cx) ** 2 + ((y - cy) * rng.uniform(0.6, 1.6)) ** 2 < radius**2)[..., None]
        shade = (1 - 0.5 * np.hypot(x - cx + 0.3 * radius, y - cy + 0.3 * radius) / radius)[..., None]
        image = np.where(inside, rng.uniform(20, 255, 3) * shade, image)
    stripes = (np.sin(2 * np.pi * (x * rng.uniform(6, 14) + y * rng.uniform(-6, 6))) > 0) & (y > rng.uniform(0.6, 0.9))
    image = np.where(stripes[..., None], image * 0.6, image) + rng.normal(0, 3, (size, size, 3))
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def write_run(folder: Path, size: int = 16) -> Path:
    """A run of ``driftvq train`` that was stopped after 90 of 120 steps, and evaluated."""
    (folder / "samples").mkdir(parents=True)
    settings = {"quantizer": "ns_vq", "codebook_size": 64, "code_dim": 8, "data": None, "size": size, "steps": 120}
    (folder / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    command = ["__main__.py", "train", "--size", "16", "--out", "my run"]
    about = {
        "command": command,
        "date": "2026-11-16T01:02:03+00:00",
        "packages": {"driftvq": "0.1.0"},
        "python": "3.11",
    }
    (folder / "environment.json").write_text(json.dumps(about))
    lines: list[dict[str, Any]] = [
        {
            "step": 30,
            "train/usage": 0.5,
            "val/psnr": 19.0,
            "val/usage": 0.4,
            "val/ssim": 0.4,
            "drift/latents_moved": 9.0,
        },
        {"step": 60, "train/usage": 0.9, "quantizer/relocated": 12.0, "drift/latents_moved": 0.2},
        {"step": 90, "train/usage": 0.97, "val/psnr": 21.5, "val/usage": 0.6, "val/ssim": 0.5, "val/perplexity": 30.0},
    ]
    (folder / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    found: dict[str, Any] = {
        "values": {"rfid": 80.0, "usage": 0.3},
        "n": 50,
        "notes": {"data": "photos", "split": "val"},
    }
    found |= {"weights": weights_hash(folder), "own_images": True}
    (folder / "evaluation.json").write_text(json.dumps(found))
    sample = Image.new("RGB", (3 * size, 2 * size))
    for i in range(3):
        original = picture(i, size)
        sample.paste(original, (i * size, 0))
        sample.paste(original.filter(ImageFilter.GaussianBlur(1)), (i * size, size))
    sample.save(folder / "samples" / "step-00000090.png")
    return folder
