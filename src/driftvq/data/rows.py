"""The order of training images as arithmetic, and what one worker reads at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from driftvq.data.images import BadImageError, Pixels, Problems, fit_image
from driftvq.data.sources import ImageSource

BLOCKS_TOGETHER = 16  # shards whose samples are mixed: enough to shuffle well, few enough to read nearly in sequence


class Order:
    """An endless sequence of image indices: one :func:`permutation` after the other, each from (seed, epoch)."""

    def __init__(self, count: int, seed: int, block_ends: NDArray[np.int64] | None = None) -> None:
        if seed < 0:
            raise ValueError(f"seed must be 0 or more; received {seed}")
        self.count, self.seed, self._block_ends = count, seed, block_ends
        self._cached: tuple[int, NDArray[np.int64]] | None = None

    def positions(self, step: int, batch_size: int, rank: int, world_size: int) -> range:
        """Positions of a rank's rows: its part of the global batch ``batch_size * world_size``."""
        first = (step * world_size + rank) * batch_size
        return range(first, first + batch_size)

    def candidates(self, position: int, tries: int) -> Iterator[int]:
        """The image at a position, then those after it, round the same epoch: what replaces it if unreadable."""
        epoch, offset = divmod(position, self.count)
        order = self.epoch(epoch)
        return (int(order[(offset + shift) % self.count]) for shift in range(tries))

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of one epoch."""
        if self._cached is None or self._cached[0] != epoch:
            self._cached = epoch, permutation(self.count, self.seed, epoch, self._block_ends)
        return self._cached[1]


def permutation(count: int, seed: int, epoch: int, block_ends: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """All indices in an order drawn from (seed, epoch), which mixes a few blocks of neighbours (shards) at a time."""
    rng = np.random.default_rng((seed, epoch))
    if block_ends is None or len(block_ends) <= BLOCKS_TOGETHER:
        return rng.permutation(count)
    starts = np.concatenate([[0], block_ends[:-1]])
    blocks = rng.permutation(len(block_ends))
    mixed = []
    for first in range(0, len(blocks), BLOCKS_TOGETHER):
        group = [np.arange(starts[block], block_ends[block]) for block in blocks[first : first + BLOCKS_TOGETHER]]
        mixed.append(rng.permutation(np.concatenate(group)))
    return np.concatenate(mixed)


MAX_TRIES = 1000  # unreadable images in a row that end the training: the data is broken, and to go on looks like a hang
KEPT_BYTES = 1 << 28  # of decoded images that the processes of a loader keep together: a small data set is read once
REDUCING_GAP = 2  # large JPEGs are decoded at a reduced size, at least so many times the wanted one; then comes Lanczos


class Part(NamedTuple):
    """What a worker hands over; plain arrays, since tensors would need shared memory, which containers lack."""

    images: list[Pixels]
    names: list[str]
    skipped: Problems
    error: str | None = None  # ends the iteration; an exception would arrive here as a page of traceback


@dataclass(eq=False)
class TrainRows(Dataset[Part]):
    """The rows of one rank at a step."""

    source: ImageSource
    size: int
    batch_size: int
    seed: int
    rank: int
    world_size: int
    crop: str
    flip: bool
    strict: bool

    def __post_init__(self) -> None:
        self.order = Order(len(self.source), self.seed, getattr(self.source, "block_ends", None))
        self._kept: dict[int, Pixels] = {}
        self._kept_bytes = 0

    def __getitem__(self, step: int) -> Part:
        part = Part([], [], [])
        for position in self.order.positions(step, self.batch_size, self.rank, self.world_size):
            if (error := self._add(part, position)) is not None:
                return part._replace(error=error)
        return part

    def _add(self, part: Part, position: int) -> str | None:
        """Add the image at a position of the endless order, or the next that can be read; return what is wrong."""
        rng = np.random.default_rng((self.seed, position))
        tries = min(len(self.source), MAX_TRIES)
        for index in self.order.candidates(position, tries):
            name = self.source.name(index)
            try:
                part.images.append(fit_image(self._read(index), self.size, self.crop, self.flip, rng))
                part.names.append(name)
                return None
            except BadImageError as bad:
                part.skipped.append((name, bad.reason))
                if self.strict:
                    return f"cannot read {name}: {bad.reason}"
        return f"{tries} images in a row cannot be read, the last one, {name}: {part.skipped[-1][1]}"

    def _read(self, index: int) -> Pixels:
        """The image, from memory once it was read; what no longer fits there is read each time.

        Nothing makes room for another one: in orders that have every image once, the first that came are as good.
        """
        if (kept := self._kept.get(index)) is not None:
            return kept
        image = self.source.read(index, REDUCING_GAP * self.size)
        if self.crop == "center":  # where nothing is drawn but the flip, which comes later
            image = fit_image(image, self.size)
        image = image if image.base is None else image.copy()  # a view would keep all that it is a part of
        worker = get_worker_info()
        if self._kept_bytes + image.nbytes <= KEPT_BYTES // (1 if worker is None else worker.num_workers):
            self._kept[index] = image
            self._kept_bytes += image.nbytes
        return image


@dataclass(eq=False)
class EvalRows(Dataset[Part]):
    """A run of consecutive images."""

    source: ImageSource
    size: int | None
    indices: NDArray[np.int64]
    chunk: int
    strict: bool
    max_pixels: int | None

    def __getitem__(self, number: int) -> Part:
        part = Part([], [], [])
        for index in self.indices[number * self.chunk : (number + 1) * self.chunk].tolist():
            name = self.source.name(index)
            try:
                image = self.source.read(index)
                height, width = image.shape[:2]
                if self.size is None and self.max_pixels is not None and height * width > self.max_pixels:
                    raise BadImageError(f"{width} x {height} is more than {self.max_pixels:,} pixels, the limit here")
                part.images.append(image if self.size is None else fit_image(image, self.size))
                part.names.append(name)
            except BadImageError as bad:
                if self.strict:
                    return part._replace(error=f"cannot read {name}: {bad.reason}")
                part.skipped.append((name, bad.reason))
        return part
