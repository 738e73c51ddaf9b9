"""Images of a comparison as data URIs, within a number of bytes."""

import base64
import math
from io import BytesIO
from pathlib import Path
from typing import Any

from driftvq.records.comparisons import ORIGINALS, RECONSTRUCTIONS
from driftvq.records.runs import RUN, SAMPLES
from driftvq.report.results import Results, Row

MAX_IMAGES = 8
LANCZOS = 1
"""Pillow's number for it."""
SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}

LEVELS: tuple[tuple[int, int | None, int], ...] = (
    # side in pixels at most, WebP quality (None: the file as it is), images at most
    (0, None, MAX_IMAGES),
    (512, 90, MAX_IMAGES),
    (256, 88, MAX_IMAGES),
    (256, 75, MAX_IMAGES),
    (192, 80, MAX_IMAGES),
    (128, 75, MAX_IMAGES),
    (128, 70, 4),
    (96, 60, 2),
    (64, 50, 1),
)
"""Ways to embed, best first; the first one that fits is taken."""

HOPELESS = 0.5
"""A level is given up at once if even reconstructions of half the originals' size would not fit."""


def gather_strips(results: Results, budget: int) -> dict[str, Any] | None:
    """Originals and the reconstructions of each row's first finished seed, in at most ``budget`` bytes.

    Returns:
        None if there are no originals, or if they do not fit at all.
    """
    first = results.comparison.folder / ORIGINALS
    if results.comparison.recipe == RUN:
        return _sample_strips(results)
    originals = sorted(first.glob("*.*"))[:MAX_IMAGES]
    rows = [(row, row.done[0].folder / RECONSTRUCTIONS) for row in results.rows if row.done]
    for side, quality, limit in LEVELS:
        names = [path.name for path in originals[:limit]]
        strips = _strips([first, *(folder for _, folder in rows)], names, side, quality, budget)
        if strips is not None:
            return _described(results, rows, names, strips, _words(side, quality, len(names), len(originals)))
    return None


def _sample_strips(results: Results) -> dict[str, Any] | None:
    """The first images of a run's latest sample, in which each row of originals lies over its reconstructions."""
    samples, side = sorted((results.comparison.folder / SAMPLES).glob("step-*.png")), results.comparison.data["size"]
    image = _picture(samples[-1]) if samples else None
    if image is None or not isinstance(side, int):
        return None
    columns = min(image.width // side, MAX_IMAGES)
    parts = [image.crop((x * side, y, (x + 1) * side, y + side)) for y in (0, side) for x in range(columns)]
    files = [BytesIO() for _ in parts]
    for part, file in zip(parts, files, strict=True):
        part.save(file, "PNG")
    uris = [f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}" for file in files]
    row: dict[str, Any] = {"method": 0, "point": None, "seed": results.comparison.seeds[0], "images": uris[columns:]}
    row["psnr"] = [_difference(*pair) for pair in zip(parts[:columns], parts[columns:], strict=True)]
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


def _described(
    results: Results, rows: list[tuple[Row, Path]], names: list[str], strips: list[list[str | None]], note: str
) -> dict[str, Any] | None:
    kept = [i for i, uri in enumerate(strips[0]) if uri]
    if not kept:
        return None
    first = results.comparison.folder / ORIGINALS
    described = []
    for (row, folder), uris in zip(rows, strips[1:], strict=True):
        strip: dict[str, Any] = {"method": results.comparison.methods.index(row.method), "point": row.point}
        strip |= {"seed": row.done[0].seed, "images": [uris[i] for i in kept]}
        described.append(strip | {"psnr": [_psnr(first / names[i], folder / names[i]) for i in kept]})
    return {
        "names": [names[i] for i in kept],
        "originals": [strips[0][i] for i in kept],
        "rows": described,
        "note": note,
    }


def _words(side: int, quality: int | None, shown: int, there: int) -> str:
    parts = []
    if quality is not None:
        parts.append(
            f"To keep the page small, images are embedded as WebP (quality {quality}, at most {side} px a side)."
        )
    if shown < there:
        parts.append(f"{shown} of {there} images are shown.")
    return " ".join(parts)


def _embedded(path: Path, side: int, quality: int | None) -> str | None:
    """The image as a data URI; None if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    kind = next((kind for start, kind in SIGNATURES.items() if data.startswith(start)), None)
    if kind is None:
        return None
    if quality is not None:
        image, file = _picture(BytesIO(data)), BytesIO()
        if image is None:
            return None
        image.thumbnail((side, side), LANCZOS)
        image.save(file, "WEBP", quality=quality, method=1)
        data, kind = file.getvalue(), "webp"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _psnr(original: Path, reconstruction: Path) -> float | None:
    """PSNR of one image in dB; None if the two cannot be compared."""
    first, second = _picture(original), _picture(reconstruction)
    return None if first is None or second is None else _difference(first, second)


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


def _difference(original: Any, reconstruction: Any) -> float | None:
    """PSNR of two pictures of Pillow in dB; None if they differ in size, or not at all."""
    import numpy as np

    a, b = (np.asarray(image, dtype=np.float64) for image in (original, reconstruction))
    if a.shape != b.shape:
        return None
    error = float(np.square(a - b).mean())
    return round(10 * math.log10(255**2 / error), 2) if error else None
