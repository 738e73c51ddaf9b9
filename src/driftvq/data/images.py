"""One image: from a file to uint8 RGB, to a square of the wanted size, and back into a file."""

import os
from contextlib import suppress
from functools import cache
from io import BytesIO
from types import ModuleType
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from driftvq.files import open_regular, replacing
from driftvq.machine import available_memory
from driftvq.names import check_name, needed, reason_of

Pixels = NDArray[np.uint8]
Problems = list[tuple[str, str]]  # name and reason of what cannot be read
_ENDINGS = "jpg jpeg jpe jfif png webp bmp dib gif tif tiff ppm pgm pbm pnm avif jp2 j2k"
SUFFIXES = frozenset(f".{ending}" for ending in _ENDINGS.split())  # of file names that count as images
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000")
"""What Pillow may try; its other readers include one that starts an external program (EPS)."""
MAX_PIXELS = 178_956_970  # Pillow's own limit for an error; checked here from the header, with no global setting
READ_BYTES = 24  # memory that reading takes for a pixel at most: transparency, or 16 bits, beside what Pillow keeps
USABLE = 0.8  # share of the free memory that images may take
SMALL_FILE, SMALL_IMAGE = 1 << 20, 1 << 22  # bytes read at once; pixels read without a look at the memory
_ORIENTATION_TAG = 0x0112
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
"""What undoes the EXIF orientations 2 to 8."""


class BadImageError(ValueError):
    """An image that cannot be read; ``reason`` says why in a few words."""

    def __init__(self, reason: str, where: str | None = None) -> None:
        super().__init__(reason if where is None else f"cannot read {where}: {reason}")
        self.reason = reason


def is_image_name(name: str) -> bool:
    """Whether a file name ends like an image's."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 (a Path costs ten times as much)


def to_float(images: Tensor) -> Tensor:
    """uint8 values 0..255 as float32 in [-1, 1], ``x / 127.5 - 1``."""
    return images.to(torch.float32) / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """Float values in [-1, 1] (clamped) as uint8, rounded: the inverse of :func:`to_float`."""
    return ((images.to(torch.float32).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def read_image(source: str | os.PathLike[str] | bytes, min_side: int | None = None) -> Pixels:
    """Decode an image file, or its bytes, to uint8 RGB ``(h, w, 3)``; a BadImageError says why it cannot be.

    EXIF orientation is applied (colour profiles are not), transparency laid over white, 16 bits scaled to 8, CMYK
    converted, of an animation the first frame taken. With ``min_side``, a JPEG is decoded at 1/2, 1/4 or 1/8 of its
    size as long as both sides stay at least this long: several times faster, at slightly other pixel values.
    """
    where = None if isinstance(source, bytes) else os.fspath(source)
    pillow = pillow_image()
    try:
        with _open(source) as stream, pillow.open(stream, formats=_formats()) as image:
            return _decode(pillow, image, min_side)
    except BadImageError as error:
        raise BadImageError(error.reason, where) from error
    except Exception as error:  # decoders raise almost anything on damaged input, from SyntaxError to struct.error
        raise BadImageError(_reason(error), where) from error


def write_image(path: str | os.PathLike[str], image: Pixels) -> None:
    """Write uint8 RGB ``(h, w, 3)`` as a PNG; a reader sees the whole file or none."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"an image to write is uint8 (h, w, 3); received {image.dtype} {tuple(image.shape)}")
    with replacing(path) as temporary:
        pillow_image().fromarray(np.ascontiguousarray(image)).save(temporary, format="PNG")


def pillow_image() -> Any:
    """Pillow's module for images."""
    return needed("PIL.Image", "images are read with Pillow")


@cache
def _formats() -> tuple[str, ...]:
    """Those of FORMATS that the installed Pillow was built with."""
    pillow = pillow_image()
    pillow.init()
    return tuple(name for name in FORMATS if name in pillow.OPEN)


def _open(source: str | os.PathLike[str] | bytes) -> IO[bytes]:
    """A stream of regular data that is not empty; a small file is read in one go, as Pillow reads it in many bits."""
    file: IO[bytes] = BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= SMALL_FILE and not isinstance(source, bytes):
        with file:
            file = BytesIO(file.read())
    if size == 0:
        raise BadImageError("empty (0 bytes)")
    return file


def _reason(error: Exception) -> str:
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image, or of an unsupported format"
    if type(error).__name__.startswith("DecompressionBomb"):
        return "more pixels than allowed"
    return (isinstance(error, OSError) and error.strerror) or reason_of(error)


def _decode(pillow: ModuleType, image: Any, min_side: int | None) -> Pixels:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise BadImageError(f"{width} x {height} is more than {MAX_PIXELS:,} pixels")
    drafted = None if min_side is None else image.draft(None, (min_side, min_side))
    _check_memory(*image.size)
    image.load()
    if drafted is not None and image.size != (sides := (int(drafted[1][2]), int(drafted[1][3]))):
        image = image.crop((0, 0, *sides))  # where the factor does not divide a side, it ends in a made-up pixel
    orientation = 1
    with suppress(Exception):  # damaged metadata, which says nothing about the pixels
        orientation = int(image.getexif().get(_ORIENTATION_TAG, 1))
    if 2 <= orientation <= 8:
        image = image.transpose(getattr(pillow.Transpose, _TURNS[orientation - 2]))
    if image.mode == "I" or image.mode.startswith("I;16"):
        gray = np.asarray(image)
        low, high = int(gray.min()), int(gray.max())
        if low < 0 or high > 65535:
            raise BadImageError(f"integer pixels from {low} to {high}, outside 0..65535")
        return np.repeat(((gray.astype(np.uint32) + 128) // 257).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise BadImageError("floating-point pixels, whose range is not known")
    has_alpha = image.mode == "P" and image.palette.mode.endswith("A")
    if has_alpha or image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _check_memory(width: int, height: int) -> None:
    """Refuse what the free memory does not hold; worker processes share it."""
    worker = get_worker_info()
    need, free = width * height * READ_BYTES * (1 if worker is None else worker.num_workers), 0
    if width * height > SMALL_IMAGE and need > USABLE * (free := available_memory()):
        raise BadImageError(f"{width} x {height} pixels need {need >> 20:,} MB to be read, {free >> 20:,} MB are free")


CROPS = ("center", "random")


def fit_image(
    image: Pixels, size: int, crop: str = "center", flip: bool = False, rng: np.random.Generator | None = None
) -> Pixels:
    """Scale the shorter side to ``size`` (Lanczos with antialiasing) and cut a square ``(size, size, 3)`` out.

    ``crop`` is "center", or "random" along the longer side; ``flip`` mirrors left and right with probability 1/2. They
    need ``rng``, which always gives two numbers, whatever the image's shape.
    """
    check_name("crop", crop, CROPS)
    drawn = crop == "random" or flip
    if drawn and rng is None:
        raise ValueError("crop='random' and flip need rng, a numpy.random.Generator; received None")
    place, side = rng.random(2) if drawn and rng is not None else (0.0, 1.0)
    square = _cut_square(image, size, float(place) if crop == "random" else None)
    return np.ascontiguousarray(square[:, ::-1]) if flip and side < 0.5 else square


def _cut_square(image: Pixels, size: int, place: float | None) -> Pixels:
    """The square at ``place`` (0 to below 1; None is the centre) of the longer side; the rest is not even scaled."""
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
    return np.array(pillow.fromarray(image).resize((size, size), pillow.Resampling.LANCZOS, box=box))
