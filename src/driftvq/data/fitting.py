"""One image: to a square of the wanted size."""

import numpy as np

from driftvq.data.images import Pixels, pillow_image
from driftvq.names import check_name

CROPS = ("center", "random")


def fit_image(
    image: Pixels, size: int, crop: str = "center", flip: bool = False, rng: np.random.Generator | None = None
) -> Pixels:
    """Scale the shorter side to ``size`` (Lanczos with antialiasing) and cut a square ``(size, size, 3)`` out.

    Args:
        crop: "center", or "random" along the longer side.
        flip: mirror left and right with probability 1/2.
        rng: needed by ``crop="random"`` and ``flip``; always gives two numbers, whatever the image's shape.
    """
    check_name("crop", crop, CROPS)
    place, mirror = None, False
    if crop == "random" or flip:
        if rng is None:
            raise ValueError("crop='random' and flip need rng, a numpy.random.Generator; received None")
        draws = rng.random(2)
        place = float(draws[0]) if crop == "random" else None
        mirror = flip and bool(draws[1] < 0.5)
    square = _cut_square(image, size, place)
    return np.ascontiguousarray(square[:, ::-1]) if mirror else square


def _cut_square(image: Pixels, size: int, place: float | None) -> Pixels:
    """The square at ``place`` (0 to below 1; None is the centre) of the longer side.

    Only the square's own part is scaled, so that a long thin strip stays cheap.
    """
    height, width = image.shape[:2]
    short, long = min(height, width), max(height, width)
    scaled_long = max(size, round(long * size / short))
    offset = (scaled_long - size) // 2 if place is None else int(place * (scaled_long - size + 1))
    if short == size:
        part = slice(offset, offset + size)
        return np.ascontiguousarray(image[:, part] if width == long else image[part])
    start, end = offset * long / scaled_long, (offset + size) * long / scaled_long
    box = (start, 0, end, height) if width == long else (0, start, width, end)
    pillow = pillow_image()
    resized = pillow.fromarray(image).resize((size, size), pillow.Resampling.LANCZOS, box=box)
    return np.array(resized)
