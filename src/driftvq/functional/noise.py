"""Random numbers that are a function of a seed and a place: drawn again without keeping them, and on any device.

Shape suffixes: b rows of one block, k columns.
"""

import torch
from torch import Tensor

ROW, COLUMN, SEED, SPREAD = 0x2545F4914F6CDD1D, 0x6A09E667F3BCC909, 0x3C6EF372FE94F82B, 0x1F83D9ABFB41BD6B
"""Odd numbers without pattern, by which places and seeds are told apart."""

FIRST, SECOND = 0x2C1B3C6D, 0x297A2D39
"""Odd numbers of 30 bits, by whose products the bits of two keys are mixed."""


def row_keys(count: int, seed: Tensor) -> Tensor:
    """Random bits of each row, int32 ``(count,)``, from a seed that the device keeps: an int64 scalar."""
    return _keys(count, seed, ROW)


def column_keys(count: int, seed: Tensor) -> Tensor:
    """Likewise of each column, independent of the rows'."""
    return _keys(count, seed, COLUMN)


def _keys(count: int, seed: Tensor, kind: int) -> Tensor:
    key = (torch.arange(1, count + 1, device=seed.device) * kind).add_(seed * SEED)
    for _ in range(2):
        key = (key ^ (key >> 31 & 0x1FFFFFFFF)) * SPREAD  # the mask: a shift repeats the sign
    return (key >> 32).to(torch.int32)


def uniform(row_b: Tensor, column_k: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers strictly between 0 and 1, one for each pair of keys ``(b, k)``."""
    bits_bk = (row_b[:, None] ^ column_k).mul_(FIRST)
    bits_bk = bits_bk.bitwise_xor_((bits_bk >> 15).bitwise_and_(0x1FFFF)).mul_(SECOND)
    edge = max(2.0**-33, torch.finfo(dtype).eps / 2)
    return bits_bk.to(dtype).mul_(2.0**-32).add_(0.5).clamp_(min=2.0**-33, max=1 - edge)


def gumbel(row_b: Tensor, column_k: Tensor, dtype: torch.dtype) -> Tensor:
    """Gumbel noise ``-log(-log u)``, ``(b, k)``."""
    return uniform(row_b, column_k, dtype).log_().neg_().log_().neg_()
