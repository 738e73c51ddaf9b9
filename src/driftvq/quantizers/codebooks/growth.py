"""More codes in the middle of training, m beside the k before, without changing what these mean."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

MOST_PER_ROUND = 0.25  # share of the codes that are split before it is looked again which are the busiest
STEP_SHARE = 0.1  # of a parent's way to its nearest neighbour, after which a new code starts at most: in the same cell
BLOCK_DISTANCES = 2**24


class Split(NamedTuple):
    """New code i starts on the way from code ``parents[i]`` to ``others[i]``, at ``share[i]`` of it; all ``(m,)``."""

    parents: Tensor
    others: Tensor
    share: Tensor


Rule = Callable[[Tensor, Split], Tensor]
"""From the rows of all codes ``(k, …)``, those of the old and new ones ``(k + m, …)``."""


def between(rows: Tensor, split: Split) -> Tensor:
    """New codes lie on the way from their parents to others."""
    share = split.share.to(rows.dtype)[:, None]
    return torch.cat([rows, torch.lerp(rows[split.parents], rows[split.others], share)])


def copied(rows: Tensor, split: Split) -> Tensor:
    """New codes take over what their parents have."""
    return torch.cat([rows, rows[split.parents]])


def halved(rows: Tensor, split: Split) -> Tensor:
    """Parents share what they have with the new codes."""
    return copied(rows.index_copy(0, split.parents, rows[split.parents] / 2), split)


def split_busiest(codebook_kd: Tensor, busyness_k: Tensor, old_size: int, most: int, seed: int) -> Split:
    """The codes to split in one round, busiest first, each by a random step, since it may be split again in another.

    At most ``most`` are split. The ``old_size`` codes before growth set the distances and directions, the seed, which
    is the same in all processes, the steps.
    """
    codebook_kd = codebook_kd.to(torch.promote_types(codebook_kd.dtype, torch.float32))  # no distances in half
    count = min(most, max(1, int(MOST_PER_ROUND * len(codebook_kd))))
    parents_m = busyness_k.topk(count).indices
    generator = torch.Generator().manual_seed(seed)
    offset_m = torch.randint(1, max(2, old_size), (count,), generator=generator)
    length_m = (0.5 + torch.rand(count, generator=generator) / 2).to(codebook_kd)
    others_m = (parents_m + offset_m.to(parents_m.device)) % old_size
    old_kd, reach = codebook_kd[:old_size], []
    for block in torch.split(parents_m, max(1, BLOCK_DISTANCES // old_size)):
        distances = torch.cdist(codebook_kd[block], old_kd, compute_mode="donot_use_mm_for_euclid_dist")
        reach.append(torch.where(distances > 0, distances, torch.inf).amin(dim=1))
    apart_m = (codebook_kd[parents_m] - codebook_kd[others_m]).norm(dim=1)
    share_m = STEP_SHARE * torch.cat(reach) / apart_m.clamp(min=torch.finfo(apart_m.dtype).tiny)
    return Split(parents_m, others_m, length_m * share_m.clamp(max=STEP_SHARE))


def grow_rows_(module: nn.Module, name: str, rule: Rule, split: Split, optimizer: Optimizer | None) -> None:
    """Enlarge a buffer, or a parameter with what an optimizer knows about it."""
    rows = getattr(module, name)
    grown = rule(rows.detach(), split)
    if not isinstance(rows, nn.Parameter):
        setattr(module, name, grown)
        return
    old_shape = rows.shape
    # A graph that is still alive remembers the old shape for the next gradient, until the type changes in between.
    another_type = torch.float32 if rows.dtype == torch.float16 else torch.float16
    rows.grad, rows.data = None, rows.new_empty(0, dtype=another_type)
    rows.data = grown
    state = optimizer.state.get(rows, {}) if optimizer is not None else {}
    for key, value in state.items():
        if not isinstance(value, Tensor) or value.shape[:1] != old_shape[:1]:
            continue
        # It says something of each code: a number for each of its dimensions, or one for several.
        if all(size in (1, full) for size, full in zip(value.shape[1:], old_shape[1:], strict=False)):
            state[key] = copied(value, split)
