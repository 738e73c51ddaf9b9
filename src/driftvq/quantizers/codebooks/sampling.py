"""Latents of a batch, drawn by weight, the same in every process, that take over free codes, at most m at once."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from driftvq.quantizers.distributed import by_process, sum_over_processes, world_size

PLACES = 1024  # free codes that are filled at most at once
GOLDEN, CYCLE = 0.6180339887498949, 4096  # modulo 1 its multiples lie more evenly than random numbers; so many differ


class Drawn(NamedTuple):
    """Rows ``(m, d)``, and at which places there is one ``(m,)``."""

    rows: Tensor
    there: Tensor

    def in_front(self) -> tuple[Tensor, Tensor]:
        """The same with all rows that there are in front, and how many these are."""
        return self.rows[(~self.there).to(torch.int8).argsort(stable=True)], self.there.sum()


def draw_rows(
    x_nd: Tensor, weight_n: Tensor, wanted: Tensor, places: int, step: Tensor, totals_r: Tensor | None = None
) -> Drawn:
    """Rows drawn by weight from the batch that all processes hold together; the same in each of them.

    Systematic sampling: with ``S_i = Σ_{j≤i} w_j``, place t takes the first row whose ``S_i > (t + u) S_n / T``. Rows
    are drawn in proportion to their weights, T = ``wanted`` in all; one that is due several times is taken once, one of
    weight 0 never. u is ``step · φ`` modulo 1, so that no random number, no sort and no host read is needed; the step
    is the same in each process. ``totals_r`` is the weight of each process's rows, if it is known already.
    """
    if len(x_nd) == 0:
        x_nd, weight_n = x_nd.new_zeros(1, x_nd.shape[1]), weight_n.new_zeros(1)
    reached_n, places_m = running_sum(weight_n), torch.arange(places, device=x_nd.device)
    below, total = None, reached_n[-1]
    if world_size() > 1:
        if totals_r is None:
            (totals_r,) = sum_over_processes(by_process(total))
        below, total = totals_r[: dist.get_rank()].sum(), totals_r.sum()
    at_m = (places_m + (step % CYCLE * GOLDEN).frac()) * (total / wanted.clamp(min=1))
    if below is not None:
        at_m = at_m - below
    rows_m = torch.searchsorted(reached_n, at_m.to(reached_n.dtype), right=True)
    if below is not None:
        rows_m = torch.where(at_m < 0, -1, rows_m)
    there_m = (places_m < wanted) & (rows_m < len(x_nd))
    there_m[1:].logical_and_(rows_m[1:] != rows_m[:-1])
    drawn = Drawn(x_nd[rows_m.clamp(min=0, max=len(x_nd) - 1)], there_m)
    return drawn if below is None else _shared(drawn, rows_m >= 0)


def running_sum(weight_n: Tensor) -> Tensor:
    """``S_i = Σ_{j≤i} w_j``; in whole numbers where algorithms are to be deterministic: CUDA has no other that is."""
    if not torch.are_deterministic_algorithms_enabled():
        return weight_n.cumsum(dim=0)
    unit = weight_n.sum().clamp(min=torch.finfo(weight_n.dtype).tiny) / 2**40
    whole_n: Tensor = (weight_n / unit).round().long().cumsum(dim=0)
    return whole_n * unit


def _shared(drawn: Drawn, here_m: Tensor) -> Drawn:
    """The rows that any process has drawn."""
    rows_mv = torch.cat([drawn.rows, torch.ones_like(drawn.rows[:, :1])], dim=1)
    (rows_mv,) = sum_over_processes(torch.where((drawn.there & here_m)[:, None], rows_mv, 0))
    return Drawn(rows_mv[:, :-1], rows_mv[:, -1] > 0)


def take_over(
    codes_kd: Tensor, free_k: Tensor, x_nd: Tensor, weight_n: Tensor, step: Tensor, totals_r: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Let rows of :func:`find_places` take over free codes: the codes afterwards, and which were taken over."""
    places_kd, taken_k = find_places(free_k, x_nd, weight_n, step, totals_r=totals_r)
    return torch.where(taken_k[:, None], places_kd.to(codes_kd.dtype), codes_kd), taken_k


def find_places(
    free_k: Tensor,
    x_nd: Tensor,
    weight_n: Tensor,
    step: Tensor,
    most: Tensor | None = None,
    totals_r: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A row drawn by weight (:func:`draw_rows`) for each of the free codes, at most ``most`` or :data:`PLACES` of them.

    A row is for one code at most. Returns a row per code ``(k, d)``, and which of them are meant ``(k,)``.
    """
    order_k = free_k.cumsum(dim=0)
    wanted = order_k[-1] if most is None else order_k[-1].minimum(most)
    drawn = draw_rows(x_nd, weight_n, wanted, min(len(free_k), PLACES), step, totals_r)
    place_k = (order_k - 1).clamp(min=0, max=len(drawn.there) - 1)
    return drawn.rows[place_k], free_k & (order_k <= len(drawn.there)) & drawn.there[place_k]
