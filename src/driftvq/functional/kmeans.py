"""k-means: the codebook that a frozen encoder deserves. In shapes, c are the candidates of one seeding round."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from driftvq.functional.search import METRICS, Metric, nearest
from driftvq.names import one_of

SEEDING_ROUNDS = 64  # k-means++ draws one seed at a time; beyond this many seeds it draws several a round


class KMeansResult(NamedTuple):
    """Codes ``(k, d)``, the code of each latent ``(n,)``, and the inertia, the sum of squared distances to it."""

    codebook: Tensor
    indices: Tensor
    inertia: Tensor


def kmeans(
    x_nd: Tensor, codebook_size: int, iterations: int = 10, metric: Metric = "l2", generator: Generator | None = None
) -> KMeansResult:
    """Lloyd's algorithm from a k-means++ start; empty cells are seeded again at the latents that fit worst.

    Of fewer latents ``(n, d)`` than codes the surplus codes repeat latents. There are at most so many ``iterations``,
    until no latent changes its cell; ``"cosine"`` makes codes of unit length; a CPU generator fixes the result.
    """
    if x_nd.ndim != 2 or x_nd.shape[0] == 0:
        raise ValueError(f"k-means needs latents of shape (n, d) with n ≥ 1, got {tuple(x_nd.shape)}")
    if codebook_size < 1:
        raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
    one_of("metric", metric, METRICS)
    x_nd = x_nd.detach().to(torch.promote_types(x_nd.dtype, torch.float32))  # half precision cannot count past 256
    if metric == "cosine":
        x_nd = F.normalize(x_nd, dim=1)
    if len(x_nd) <= codebook_size:
        codebook_kd, iterations = x_nd[torch.arange(codebook_size, device=x_nd.device) % len(x_nd)].clone(), 0
    else:
        codebook_kd = kmeans_plus_plus(x_nd, codebook_size, generator)
    indices_n = nearest(x_nd, codebook_kd)
    for _ in range(iterations):
        codebook_kd = _centroids(x_nd, codebook_kd, indices_n)
        if metric == "cosine":
            codebook_kd = F.normalize(codebook_kd, dim=1)
        previous_n, indices_n = indices_n, nearest(x_nd, codebook_kd)
        if torch.equal(previous_n, indices_n):
            break
    return KMeansResult(codebook_kd, indices_n, _residuals(x_nd, codebook_kd, indices_n).sum())


def kmeans_plus_plus(x_nd: Tensor, codebook_size: int, generator: Generator | None = None) -> Tensor:
    """Seeds drawn with probability proportional to the squared distance to the nearest earlier seed.

    A few seeds are drawn one by one, each the best of several candidates; many are drawn in :data:`SEEDING_ROUNDS`
    rounds of equal size, so that the cost is that of a few searches and not of k passes over the data.
    """
    if codebook_size > len(x_nd):
        raise ValueError(f"cannot draw {codebook_size} seeds from {len(x_nd)} latents")
    chosen_k = torch.randint(len(x_nd), (1,), generator=generator).to(x_nd.device)
    sq_dist_n = (x_nd - x_nd[chosen_k]).square().sum(dim=1)
    while len(chosen_k) < codebook_size:
        wanted = min(max(1, codebook_size // SEEDING_ROUNDS), codebook_size - len(chosen_k))
        if wanted == 1:
            drawn_c, sq_dist_n = _best_candidate(x_nd, sq_dist_n, chosen_k, 2 + int(math.log(codebook_size)), generator)
        else:
            drawn_c = _draw_without_replacement(sq_dist_n, chosen_k, wanted, generator)
            seeds_cd = x_nd[drawn_c]
            sq_dist_n = torch.minimum(sq_dist_n, _residuals(x_nd, seeds_cd, nearest(x_nd, seeds_cd)))
        chosen_k = torch.cat([chosen_k, drawn_c])
    return x_nd[chosen_k].clone()


def _best_candidate(
    x_nd: Tensor, sq_dist_n: Tensor, taken: Tensor, candidates: int, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Of several candidates, the one that lowers the total most, ``(1,)``, and the squared distances with it."""
    drawn_c = _draw_without_replacement(sq_dist_n, taken, min(candidates, len(x_nd) - len(taken)), generator)
    reached_cn = torch.stack([torch.minimum(sq_dist_n, (x_nd - seed).square().sum(dim=1)) for seed in x_nd[drawn_c]])
    best = reached_cn.sum(dim=1).argmin()
    return drawn_c[best : best + 1], reached_cn[best]


def _draw_without_replacement(weight_n: Tensor, taken: Tensor, count: int, generator: Generator | None) -> Tensor:
    """The largest ``log w + Gumbel`` keys are a draw without replacement; latents of zero weight come last."""
    noise_n = torch.empty(len(weight_n), dtype=torch.float64).exponential_(generator=generator)
    keys_n = weight_n.cpu().double().clamp(min=1e-300).log() - noise_n.log()
    keys_n[taken.cpu()] = -torch.inf
    return keys_n.topk(count).indices.to(weight_n.device)


def _centroids(x_nd: Tensor, codebook_kd: Tensor, indices_n: Tensor) -> Tensor:
    """Mean of every cell; an empty cell moves to one of the latents that are worst served."""
    count_k = x_nd.new_zeros(len(codebook_kd)).index_add_(0, indices_n, x_nd.new_ones(len(x_nd)))
    means_kd = torch.zeros_like(codebook_kd).index_add_(0, indices_n, x_nd) / count_k.clamp(min=1)[:, None]
    empty = (count_k == 0).nonzero().flatten()
    if len(empty):
        means_kd[empty] = x_nd[_residuals(x_nd, codebook_kd, indices_n).topk(len(empty)).indices]
    return means_kd


def _residuals(x_nd: Tensor, codebook_kd: Tensor, indices_n: Tensor) -> Tensor:
    return (x_nd - codebook_kd[indices_n]).square().sum(dim=1)
