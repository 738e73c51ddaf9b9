"""Images of a comparison as data URIs, within a number of bytes."""

import base64
import math
from io import BytesIO
from pathlib import Path
from typing import Any

from driftvq.records.comparisons import ORIGINALS, RECONSTRUCTIONS
from driftvq.records.runs import RUN, SAMPLES
from driftvq.report.results import Results

MAX_IMAGES = 8
LANCZOS = 1  # Pillow's number for it
SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}

# Ways to embed, best first, of which the first one that fits is taken: side in pixels at most, WebP quality (None: the
# file as it is), images at most.
LEVELS: tuple[tuple[int, int | None, int], ...] = (
    (0, None, MAX_IMAGES), (512, 90, MAX_IMAGES), (256, 88, MAX_IMAGES), (256, 75, MAX_IMAGES),
    (192, 80, MAX_IMAGES), (128, 75, MAX_IMAGES), (128, 70, 4), (96, 60, 2), (64, 50, 1),
)  # fmt: skip
HOPELESS = 0.5  # a level is given up at once if even reconstructions of half the originals' size would not fit


def gather_strips(results: Results, budget: int) -> dict[str, Any] | None:
    """Originals and reconstructions of each row's first finished seed in at most ``budget`` bytes; None: none fit."""
    comparison = results.comparison
    if comparison.recipe == RUN:
        return _sample_strips(results)
    originals = sorted((comparison.folder / ORIGINALS).glob("*.*"))[:MAX_IMAGES]
    rows = [(row, row.done[0].folder / RECONSTRUCTIONS) for row in results.rows if row.done]
    folders = [comparison.folder / ORIGINALS, *(folder for _, folder in rows)]
    for side, quality, limit in LEVELS:
        names = [path.name for path in originals[:limit]]
        strips = _strips(folders, names, side, quality, budget)
        if strips is not None:
            break
    kept = [i for i, uri in enumerate(strips[0]) if uri] if strips else []
    if not strips or not kept:
        return None
    described = []
    for (row, folder), uris in zip(rows, strips[1:], strict=True):
        strip: dict[str, Any] = {"method": comparison.methods.index(row.method), "point": row.point}
        strip |= {"seed": row.done[0].seed, "images": [uris[i] for i in kept]}
        pairs = [(_picture(folders[0] / names[i]), _picture(folder / names[i])) for i in kept]
        described.append(strip | {"psnr": [_psnr(*pair) for pair in pairs]})
    how = f"as WebP (quality {quality}, at most {side} px a side)"
    note = [] if quality is None else [f"To keep the page small, images are embedded {how}."]
    note += [f"{len(names)} of {len(originals)} images are shown."] if len(names) < len(originals) else []
    shown = {"names": [names[i] for i in kept], "originals": [strips[0][i] for i in kept]}
    return {**shown, "rows": described, "note": " ".join(note)}


def _sample_strips(results: Results) -> dict[str, Any] | None:
    """The first images of a run's latest sample, in which each row of originals lies over its reconstructions."""
    samples, side = sorted((results.comparison.folder / SAMPLES).glob("step-*.png")), results.comparison.data["size"]
    image = _picture(samples[-1]) if samples else None
    if image is None or not isinstance(side, int):
        return None
    columns = min(image.width // side, MAX_IMAGES)
    parts = [image.crop((x * side, y, (x + 1) * side, y + side)) for y in (0, side) for x in range(columns)]
    uris = [_uri(part, "PNG") for part in parts]
    row: dict[str, Any] = {"method": 0, "point": None, "seed": results.comparison.seeds[0], "images": uris[columns:]}
    row["psnr"] = [_psnr(*pair) for pair in zip(parts[:columns], parts[columns:], strict=True)]
    names = [f"validation image {i + 1}" for i in range(columns)]
    step = int(samples[-1].stem.partition("-")[2])
    return {"names": names, "originals": uris[:columns], "rows": [row], "note": f"As they were at step {step:,}."}


def _strips(
    folders: list[Path], names: list[str], side: int, quality: int | None, budget: int
) -> list[list[str | None]] | None:
    """The images of all folders; None as soon as they will not fit, judged by the originals first."""
    left, strips = budget, []
    for folder in folders:
        strips.append([_embedded(folder / name, side, quality) for name in names])
        size = sum(len(uri) for uri in strips[-1] if uri)
        left -= size
        if left < 0 or (len(strips) == 1 and HOPELESS * size * len(folders) > budget):
            return None
    return strips


def _embedded(path: Path, side: int, quality: int | None) -> str | None:
    """The image as a data URI; None if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    kind = next((kind for start, kind in SIGNATURES.items() if data.startswith(start)), None)
    if kind is None or quality is None:
        return kind and f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    image = _picture(BytesIO(data))
    if image is None:
        return None
    image.thumbnail((side, side), LANCZOS)
    return _uri(image, "WEBP", quality=quality, method=1)


def _uri(image: Any, kind: str, **options: int) -> str:
    file = BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _picture(file: Path | BytesIO) -> Any:
    """An image of Pillow in RGB; None without Pillow, or if it cannot be read."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _psnr(original: Any, reconstruction: Any) -> float | None:
    """PSNR of two pictures of Pillow in dB; None if there is none, or if they differ in size, or not at all."""
    if original is None or reconstruction is None:
        return None
    import numpy as np

    a, b = (np.asarray(image, dtype=np.float64) for image in (original, reconstruction))
    if a.shape != b.shape:
        return None
    error = float(np.square(a - b).mean())
    return round(10 * math.log10(255**2 / error), 2) if error else None
