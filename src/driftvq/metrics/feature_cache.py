"""Features of images that were seen before, found by the images' content.

A folder per extractor holds segments: safetensors files with the keys (sha256 of shape and pixels), the features and a
checksum of every row. They are written whole and never changed: writers cannot disturb each other, and deleting any
costs time only.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftvq.files import replacing
from driftvq.names import needed

SEGMENT_ROWS = 4096  # images per segment, 33 MB of features; what is not written yet is kept in memory


def image_key(image: Tensor) -> bytes:
    """sha256 of a uint8 image's shape and pixels."""
    if image.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 to be found by their content, got {image.dtype}")
    pixels = image.detach().cpu().contiguous().numpy()
    return hashlib.sha256(repr(tuple(image.shape)).encode() + pixels.tobytes()).digest()


class FeatureCache:
    """Features by content: known ones are read from an extractor's folder, others computed and kept, if it has one."""

    def __init__(self, folder: Path | None, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self.hits = self.misses = 0
        self.problem: str | None = None
        self._known: dict[bytes, tuple[Path, Any, int]] = {}
        self._unwritten: dict[bytes, np.ndarray[Any, Any]] = {}
        if folder is not None:
            needed("safetensors", "the cache of features needs safetensors")
            for path in sorted(folder.glob("*.safetensors")):
                self._open_segment(path)

    def features(self, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Features ``(b, dim)`` on the CPU, computed for the images that are not known yet."""
        if self.folder is None:
            return compute(images).cpu()
        keys = [image_key(image) for image in images]
        rows = [self._read(key) for key in keys]
        absent = [number for number, row in enumerate(rows) if row is None]
        if absent:
            for number, row in zip(absent, compute(images[absent]).float().cpu().numpy(), strict=True):
                rows[number] = row
                self._unwritten[keys[number]] = row
        self.hits += len(keys) - len(absent)
        self.misses += len(absent)
        if len(self._unwritten) >= SEGMENT_ROWS:
            self.write()
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, self.dim)  # type: ignore[arg-type]

    def write(self) -> None:
        """Write what is new; a full disk or a folder that must not be written is remembered in ``problem``."""
        if self.folder is None or not self._unwritten:
            return
        try:
            self._open_segment(_write_segment(self.folder, self._unwritten))
        except OSError as error:
            self.problem = f"features of the real images could not be kept in {self.folder}: {error}"
        self._unwritten = {}

    def _read(self, key: bytes) -> np.ndarray[Any, Any] | None:
        if key in self._unwritten:
            return self._unwritten[key]
        if key not in self._known:
            return None
        path, segment, number = self._known[key]
        row: np.ndarray[Any, Any] = segment.get_slice("features")[number : number + 1][0]
        if zlib.crc32(row.tobytes()) == int(segment.get_slice("checksums")[number : number + 1][0]):
            return row
        with contextlib.suppress(OSError):
            path.unlink()  # the rows that were read stay valid; the next evaluation makes the file anew
        del self._known[key]
        return None

    def _open_segment(self, path: Path) -> None:
        """Learn what a segment holds; one that cannot be read is as good as none."""
        from safetensors import SafetensorError, safe_open

        with contextlib.suppress(SafetensorError, OSError, TypeError):
            segment: Any = safe_open(path, framework="numpy")
            shapes = [tuple(segment.get_slice(name).get_shape()) for name in ("keys", "features", "checksums")]
            keys: Sequence[Any] = segment.get_tensor("keys")
            if shapes == [(len(keys), 32), (len(keys), self.dim), (len(keys),)]:
                self._known.update({key.tobytes(): (path, segment, number) for number, key in enumerate(keys)})


def _write_segment(folder: Path, rows: dict[bytes, np.ndarray[Any, Any]]) -> Path:
    from safetensors.numpy import save

    features = np.stack(list(rows.values())).astype(np.float32)
    keys = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32)
    checksums = np.array([zlib.crc32(row.tobytes()) for row in features], np.int64)
    content = save({"keys": keys, "features": features, "checksums": checksums})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(b''.join(sorted(rows))).hexdigest()[:32]}.safetensors"
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path
