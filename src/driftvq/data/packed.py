"""Millions of names in little memory, and which of them are held out."""

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "val", "all")


class PackedNames:
    """An immutable sequence of byte strings kept as one block and its offsets: length + 8 bytes a name.

    A list of str takes more than twice as much, and every worker process ends up with a copy of its own, because
    reading an object changes its reference count.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        block, ends = bytearray(), array("Q", [0])
        for name in names:
            block += name
            ends.append(len(block))
        self._block = bytes(block)
        self._ends = np.frombuffer(ends, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} names")
        return self._block[int(self._ends[index]) : int(self._ends[index + 1])]

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))


def split_rows(names: Iterable[bytes], split: str, val_share: float, seed: int, where: str) -> NDArray[np.uint32]:
    """Which names belong to a split: a name is held out when its hash, with the seed, falls below the share.

    So a name stays in its split when others come or go. A set too small for that holds out the lowest hash.

    Args:
        split: "train", "val" or "all".
        where: the data's origin, for the errors.
    """
    if not 0 < val_share < 1:
        raise ValueError(f"val_share must lie between 0 and 1, both excluded; received {val_share}")
    if split == "all":
        return np.arange(sum(1 for _ in names), dtype=np.uint32)
    key = str(seed).encode()
    hashes = (int.from_bytes(blake2b(name, digest_size=8, key=key).digest(), "little") for name in names)
    shares = np.fromiter(hashes, dtype=np.uint64) / 2.0**64
    held_out = shares < val_share
    if len(shares):
        held_out |= shares == shares.min()
        held_out &= shares != shares.max()
    rows = np.flatnonzero(held_out if split == "val" else ~held_out).astype(np.uint32)
    if not len(rows):
        raise ValueError(
            f"{where} has {len(shares):,} image{'s' * (len(shares) != 1)}, too few to hold one out; "
            "name a validation set of its own"
        )
    return rows
