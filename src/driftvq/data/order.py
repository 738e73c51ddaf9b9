"""The order of training images as arithmetic: which image stands where, without any state."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BLOCKS_TOGETHER = 16
"""Shards whose samples are mixed: enough to shuffle well, few enough to stay near-sequential on disk."""


class Order:
    """An endless sequence of image indices: one permutation after the other, each from (seed, epoch).

    Args:
        count: number of images.
        block_ends: where blocks of neighbours (shards) end; the permutation then mixes a few blocks at a time.
    """

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
    """All indices in an order drawn from (seed, epoch)."""
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
