"""Image files for tests, sound and damaged, made with Pillow or byte by byte."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Something like a photograph: coarse noise, enlarged."""
    small = Image.fromarray(noise(6, 6, seed))
    return np.array(small.resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, format=kind, **options)
    return buffer.getvalue()


def fill(folder: Path, count: int, side: int = 8, first: int = 0) -> list[Path]:
    """PNG files 000.png, 001.png, ... each of one colour of its own, which is its number."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}.png" for number in range(first, first + count)]
    for number, path in enumerate(paths, start=first):
        path.write_bytes(encoded(np.full((side, side, 3), number % 256, np.uint8)))
    return paths


def png(width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG whose header may claim anything; ``rows`` may be compressed already."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", rows if rows[:1] == b"\x78" else zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
