"""Nearest code as the highest score: the ways to search on any device and on CPUs, and which of several is fastest.

By blocks of matrix products, which every device has; by faiss, the fastest on the CPU where it is installed. The third
way, :mod:`driftvq.functional.triton_search`, loads what only GPUs need.

Shape suffixes: n latents, k codes, d dimensions, b latents of one block, s sampled codes.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import block_rows, row_blocks, widest_float

Metric = Literal["l2", "cosine"]
METRICS: tuple[Metric, ...] = ("l2", "cosine")

ORIGIN_SAMPLE = 63
"""Codes whose median is the origin: few cost nothing, and these miss the middle by an eighth of the spread."""

EXPONENT_BITS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}


class Scoring(NamedTuple):
    """``score_k(x) = (x - origin)·weight_k - penalty_k / 2``, highest at the nearest code.

    Args:
        weight_kd: directions of the codes.
        penalty_k: what long codes lose.
        origin_d: subtracted from latents; None where directions are compared, which have an origin of their own.
        size: power of two by which the codes were divided.
    """

    weight_kd: Tensor
    penalty_k: Tensor
    origin_d: Tensor | None
    size: Tensor | None

    def centred(self, x_nd: Tensor) -> Tensor:
        """``x - origin``."""
        return x_nd if self.origin_d is None else x_nd - self.origin_d

    def compared(self, x_nd: Tensor) -> Tensor:
        """Latents whose squared distances to ``weight`` rank the codes as the score does."""
        return unit_rows(x_nd) if self.size is None else self.centred(x_nd).div_(self.size)


def scoring(codebook_kd: Tensor, metric: Metric) -> Scoring:
    """The score of a codebook under a metric.

    ``argmin_k |x - c_k|² = argmax_k (x·c_k - |c_k|²/2)``, for every origin and in every unit of length;
    ``argmax_k x·c_k / (|x||c_k|) = argmax_k x·ĉ_k``, whatever the length of x.
    """
    if metric == "cosine":
        return Scoring(unit_rows(codebook_kd), codebook_kd.new_zeros(len(codebook_kd)), None, None)
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    origin_d = _middle(codebook_kd)
    centred_kd = codebook_kd - origin_d
    # Only the codes are divided: |c|² then neither overflows nor vanishes at any scale of latents and codes.
    size = _power_of_two(centred_kd)
    weight_kd = centred_kd / size
    return Scoring(weight_kd, (weight_kd * centred_kd).sum(dim=1), origin_d, size)


def unit_rows(x_nd: Tensor) -> Tensor:
    """``x / |x|``; zero stays zero. The squares are summed in the widest float, which 1e±18 does not leave."""
    length_n1: Tensor = torch.linalg.vector_norm(x_nd, dim=1, keepdim=True, dtype=widest_float(x_nd.device))
    return x_nd / length_n1.clamp(min=torch.finfo(x_nd.dtype).tiny).to(x_nd.dtype)


def _middle(codebook_kd: Tensor) -> Tensor:
    """Median of a few codes: unlike the mean it stays where most codes are if some are lost far away."""
    codes = len(codebook_kd)
    sample_sd = codebook_kd[:: max(1, codes // ORIGIN_SAMPLE)][:ORIGIN_SAMPLE]
    return sample_sd.sort(dim=0).values[len(sample_sd) // 2]


def _power_of_two(x: Tensor) -> Tensor:
    """The power of two at or below the largest magnitude: division by it is exact."""
    tiny = torch.finfo(x.dtype).tiny
    if torch.compiler.is_exporting():  # other runtimes do not read the bits of a float
        return x.abs().max().clamp(min=tiny)
    integer, exponent = EXPONENT_BITS[x.dtype]
    return x.view(integer).bitwise_and(exponent).amax().view(x.dtype).clamp(min=tiny)


EXPORTED_BLOCK_CODES = 1024
"""Codes of one block in an exported graph, where a block has all latents."""


def nearest_by_blocks(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the highest score of every latent; float32 as precise as torch's matrix products are set to be."""
    return highest_by_blocks(scoring.centred(x_nd), scoring.weight_kd, scoring.penalty_k, beta=-0.5)


def highest_by_blocks(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """``argmax_k (x·w_k + β b_k)``, in blocks of latents."""
    codes = len(weight_kd)
    indices_n = torch.empty(len(x_nd), dtype=torch.int64, device=x_nd.device)
    buffer_bk = x_nd.new_empty(min(len(x_nd), block_rows(codes, x_nd.device)), codes)
    for rows in row_blocks(len(x_nd), codes, x_nd.device):
        block_bk = buffer_bk[: rows.stop - rows.start]
        torch.addmm(bias_k, x_nd[rows], weight_kd.t(), beta=beta, out=block_bk)
        torch.argmax(block_bk, dim=1, out=indices_n[rows])
    return indices_n


def highest_by_blocks_of_codes(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """The same in blocks of codes: in a graph that is exported their number is known, that of latents is not.

    A loop in the graph, as blocks one after the other would all be computed, and kept, before the first is used.
    """
    codes = len(weight_kd)
    if codes <= EXPORTED_BLOCK_CODES:
        return torch.addmm(bias_k, x_nd, weight_kd.t(), beta=beta).argmax(dim=1)
    from torch._higher_order_ops.scan import scan

    blocks = -(-codes // EXPORTED_BLOCK_CODES)
    missing = blocks * EXPORTED_BLOCK_CODES - codes
    weight_bcd = F.pad(weight_kd, (0, 0, 0, missing)).unflatten(0, (blocks, EXPORTED_BLOCK_CODES))
    never = -torch.inf if beta > 0 else torch.inf
    bias_bc = F.pad(bias_k, (0, missing), value=never).unflatten(0, (blocks, EXPORTED_BLOCK_CODES))
    start_b = torch.arange(blocks, device=x_nd.device) * EXPORTED_BLOCK_CODES

    def better(best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor, Tensor]) -> tuple[Any, Tensor]:
        weight_cd, bias_c, start = block
        score_n, place_n = torch.addmm(bias_c, x_nd, weight_cd.t(), beta=beta).max(dim=1)
        index_n = torch.where(score_n > best[0], place_n + start, best[1])
        return (torch.maximum(score_n, best[0]), index_n), start.clone()

    none = (x_nd.new_full((len(x_nd),), -torch.inf), torch.zeros(len(x_nd), dtype=torch.int64, device=x_nd.device))
    (_, index_n), _ = scan(better, none, (weight_bcd, bias_bc, start_b))
    found: Tensor = index_n
    return found


FAR = 2.0**32
"""Squared distance, in units of the codebook's size, from which faiss's ``|x|² - 2 x·c + |c|²`` is mostly ``|x|²``."""


@cache
def load_faiss() -> ModuleType | None:
    """faiss, or None where it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    module: ModuleType = faiss
    return module


def nearest_by_faiss(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the nearest code of float32 latents on the CPU."""
    faiss = load_faiss()
    assert faiss is not None
    latents, codes = scoring.compared(x_nd).contiguous().numpy(), scoring.weight_kd.contiguous().numpy()
    with _settings(faiss):
        distances_n1, indices_n1 = faiss.knn(latents, codes, 1)
    indices_n = torch.from_numpy(indices_n1[:, 0])
    far = ~(distances_n1[:, 0] < FAR)  # NaN too
    if far.any():
        far_n = torch.from_numpy(far)
        indices_n[far_n] = nearest_by_blocks(x_nd[far_n], scoring)
    return indices_n


class _Blocked:
    """Searches that rely on faiss's blocked kernels at this moment, and the setting to return to after the last."""

    lock = threading.Lock()
    searches = 0
    threshold = 0


@contextmanager
def _settings(faiss: ModuleType) -> Iterator[None]:
    """Give faiss torch's number of threads and its blocked kernels at every size; as before afterwards.

    The number of threads belongs to the calling thread. The size from which kernels are blocked belongs to the process:
    the first of several searches at once sets it, the last one restores it.
    """
    threads = faiss.omp_get_max_threads()
    with _Blocked.lock:
        if _Blocked.searches == 0:
            _Blocked.threshold = faiss.cvar.distance_compute_blas_threshold
            faiss.cvar.distance_compute_blas_threshold = 1
        _Blocked.searches += 1
    try:
        faiss.omp_set_num_threads(torch.get_num_threads())
        yield
    finally:
        faiss.omp_set_num_threads(threads)
        with _Blocked.lock:
            _Blocked.searches -= 1
            if _Blocked.searches == 0:
                faiss.cvar.distance_compute_blas_threshold = _Blocked.threshold


ROUNDS, MARGIN = 3, 0.9
"""Another way must take less than this share of the preferred one's time: a draw is decided alike in every run."""

ShapeClass = tuple[str, int, int, int]
_remembered: dict[ShapeClass, str] = {}


def fastest(ways: Mapping[str, Callable[[Tensor, Scoring], Tensor]], x_nd: Tensor, scoring: Scoring) -> str:
    """Name of the fastest way, measured on the first latents of a shape class; all ways find the same codes.

    The first way is taken unmeasured while a CUDA graph is captured, which allows no measurement; if algorithms are to
    be deterministic, since two ways may round a near-tie differently; and if torch's products may round to
    TensorFloat-32, which is not precise enough to search with.
    """
    preferred = next(iter(ways))
    fixed = torch.are_deterministic_algorithms_enabled() or torch.backends.cuda.matmul.allow_tf32
    if len(ways) == 1 or fixed:
        return preferred
    shape = shape_class(x_nd, len(scoring.weight_kd))
    if shape in _remembered:
        return _remembered[shape]
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return preferred
    best = {name: _milliseconds(partial(way, x_nd, scoring), x_nd.device) for name, way in ways.items()}
    quickest = min(best, key=lambda name: best[name])
    _remembered[shape] = quickest if best[quickest] < MARGIN * best[preferred] else preferred
    return _remembered[shape]


def shape_class(x_nd: Tensor, codes: int) -> ShapeClass:
    """Shapes measured as one: the device, latents and codes up to the next power of two, and the dimension."""
    return str(x_nd.device), (len(x_nd) - 1).bit_length(), (codes - 1).bit_length(), x_nd.shape[1]


def _milliseconds(call: Callable[[], Tensor], device: torch.device) -> float:
    """The best of a few rounds, after one that compiles and warms up."""
    call()
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best
