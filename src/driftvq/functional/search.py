"""Exact nearest-code search: nearest code as the highest score, by the fastest way that a device has."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from driftvq.functional.blocks import highest, index_like, operator, product, row_blocks, widest_float
from driftvq.names import one_of

Metric = Literal["l2", "cosine"]
METRICS: tuple[Metric, ...] = ("l2", "cosine")
Way = Literal["auto", "blocks", "faiss", "triton"]
WAYS: tuple[Way, ...] = ("auto", "blocks", "faiss", "triton")
EXPONENT_BITS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}
ORIGIN_SAMPLE = 63  # codes whose median is the origin: few cost nothing, these miss the middle by ⅛ of the spread
EXPORTED_BLOCK_CODES = 1024  # codes of one block in an exported graph, where a block has all latents
WAY_VARIABLE = "DRIFTVQ_SEARCH"  # environment variable that chooses the way for every search that leaves it open


class Scoring(NamedTuple):
    """``score_k(x) = (x - origin)·weight_k - penalty_k / 2``, highest at the nearest code.

    There is no origin where directions are compared; ``size`` is the power of two by which the codes were divided.
    """

    weight_kd: Tensor
    penalty_k: Tensor
    origin_d: Tensor | None
    size: Tensor | None

    def centred(self, x_nd: Tensor) -> Tensor:
        """``x - origin``."""
        return x_nd if self.origin_d is None else x_nd - self.origin_d


Search = Callable[[Tensor, Scoring], Tensor]


def scoring(codebook_kd: Tensor, metric: Metric) -> Scoring:
    """The score of a codebook under a metric.

    ``argmin_k |x - c_k|² = argmax_k (x·c_k - |c_k|²/2)``, for every origin and in every unit of length;
    ``argmax_k x·c_k / (|x||c_k|) = argmax_k x·ĉ_k``, whatever the length of x.
    """
    if metric == "cosine":
        return Scoring(unit_rows(codebook_kd), codebook_kd.new_zeros(len(codebook_kd)), None, None)
    # Distances do not change when the origin moves; their rounding error does, with the square of the offset.
    # The median of a few codes: unlike the mean it stays where most codes are if some are lost far away.
    sample_sd = codebook_kd[:: max(1, len(codebook_kd) // ORIGIN_SAMPLE)][:ORIGIN_SAMPLE]
    origin_d = sample_sd.sort(dim=0).values[len(sample_sd) // 2]
    centred_kd = codebook_kd - origin_d
    # Only the codes are divided: |c|² then neither overflows nor vanishes at any scale of latents and codes.
    size = _power_of_two(centred_kd)
    weight_kd = centred_kd / size
    return Scoring(weight_kd, (weight_kd * centred_kd).sum(dim=1), origin_d, size)


def unit_rows(x_nd: Tensor) -> Tensor:
    """``x / |x|``; zero stays zero. The squares are summed in the widest float, which 1e±18 does not leave."""
    length_n1: Tensor = torch.linalg.vector_norm(x_nd, dim=1, keepdim=True, dtype=widest_float(x_nd.device))
    return x_nd / length_n1.clamp(min=torch.finfo(x_nd.dtype).tiny).to(x_nd.dtype)


def _power_of_two(x: Tensor) -> Tensor:
    """The power of two at or below the largest magnitude: division by it is exact."""
    tiny = torch.finfo(x.dtype).tiny
    if torch.compiler.is_exporting():  # other runtimes do not read the bits of a float
        return x.abs().max().clamp(min=tiny)
    integer, exponent = EXPONENT_BITS[x.dtype]
    return x.view(integer).bitwise_and(exponent).amax().view(x.dtype).clamp(min=tiny)


def nearest(x_nd: Tensor, codebook_kd: Tensor, metric: Metric = "l2", way: Way = "auto") -> Tensor:
    """Index of the nearest code of every latent ``(n,)``, exact, without storing latents × codes.

    ``argmin_k |x - c_k|²`` (l2) or ``argmax_k x·c_k / (|x||c_k|)`` (cosine).

    Exact means in the latents' precision, at least float32: no other code is nearer by more than the rounding of the
    distances, from 1e-18 to 1e18 and beyond. Of codes that are equally near any may win, but the same latents and
    codes give the same indices on one device. Nothing is read back from a device, but to measure ways the first time.
    Blocks are as precise as torch's products are set to be: less, where those may round to TensorFloat-32.

    The ways: ``faiss`` on the CPU where it is installed; ``triton``, a fused kernel, on NVIDIA's and AMD's GPUs for up
    to 256 dimensions; ``blocks`` of one matrix product and one argmax everywhere. ``auto`` takes faiss on the CPU; on
    a GPU it measures once per shape which of the two is faster. Where the environment variable DRIFTVQ_SEARCH names a
    way that can be had, ``auto`` is that one.
    """
    one_of("metric", metric, METRICS)
    one_of("way", way, WAYS)
    if x_nd.ndim != 2 or codebook_kd.ndim != 2 or x_nd.shape[1] != codebook_kd.shape[1]:
        shapes = f"{tuple(x_nd.shape)} and {tuple(codebook_kd.shape)}"
        raise ValueError(f"latents (n, d) and codes (k, d) must share d, got {shapes}")
    dtype = torch.promote_types(x_nd.dtype, torch.float32)
    x_nd, codebook_kd = x_nd.detach().to(dtype), codebook_kd.detach().to(dtype)
    if torch.compiler.is_exporting():  # a plain graph that every runtime knows
        found = scoring(codebook_kd, metric)
        return highest_by_blocks_of_codes(found.centred(x_nd), found.weight_kd, found.penalty_k, beta=-0.5)
    return _nearest_op(x_nd, codebook_kd, metric, way)


@operator("nearest", index_like)
def _nearest_op(x_nd: Tensor, codebook_kd: Tensor, metric: str, way: str) -> Tensor:
    if len(x_nd) == 0:
        return torch.empty(0, dtype=torch.int64, device=x_nd.device)
    found = scoring(codebook_kd, cast("Metric", metric))
    return _search(x_nd, found, way)(x_nd, found)


@partial(torch.library.register_vmap, "driftvq::nearest")
def _(info: object, dims: tuple[int | None, ...], x_nd: Tensor, codebook_kd: Tensor, metric: str, way: str) -> Any:
    """One search for all latents of all batches; codebooks that differ are searched one after the other."""
    if dims[1] is None:
        x_bnd = x_nd.movedim(cast("int", dims[0]), 0)
        return _nearest_op(x_bnd.flatten(0, 1), codebook_kd, metric, way).unflatten(0, x_bnd.shape[:2]), 0
    codebooks = codebook_kd.unbind(dims[1])
    latents = [x_nd] * len(codebooks) if dims[0] is None else x_nd.unbind(dims[0])
    found = [_nearest_op(x, codes, metric, way) for x, codes in zip(latents, codebooks, strict=True)]
    return torch.stack(found), 0


def nearest_few(x_nd: Tensor, codebook_kd: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` nearest codes of every latent by l2, the nearest first: ``(n, count)``; in blocks."""
    dtype = torch.promote_types(x_nd.dtype, torch.float32)
    return _nearest_few_op(x_nd.detach().to(dtype), codebook_kd.detach().to(dtype), count)


@operator("nearest_few", lambda x_nd, codebook_kd, count: x_nd.new_empty(x_nd.shape[0], count, dtype=torch.int64))
def _nearest_few_op(x_nd: Tensor, codebook_kd: Tensor, count: int) -> Tensor:
    found = scoring(codebook_kd, "l2")
    indices_nc = torch.empty(len(x_nd), count, dtype=torch.int64, device=x_nd.device)
    for rows in row_blocks(len(x_nd), len(codebook_kd), x_nd.device):
        scores_bk = torch.addmm(found.penalty_k, found.centred(x_nd[rows]), found.weight_kd.t(), beta=-0.5)
        indices_nc[rows] = scores_bk.topk(count, dim=1).indices
    return indices_nc


def highest_logit(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor) -> Tensor:
    """``argmax_k (x·w_k + b_k)`` of every latent, in blocks; ties as in :func:`nearest`."""
    x_nd, weight_kd, bias_k = x_nd.detach(), weight_kd.detach(), bias_k.detach()
    if torch.compiler.is_exporting():
        return highest_by_blocks_of_codes(x_nd, weight_kd, bias_k)
    return _highest_logit_op(x_nd, weight_kd, bias_k)


def _search(x_nd: Tensor, found: Scoring, way: str) -> Search:
    """The function that searches these latents."""
    ways = available_ways(x_nd)
    if way == "auto":
        asked = one_of(WAY_VARIABLE, os.environ.get(WAY_VARIABLE, "auto"), WAYS)
        by_device = fastest(ways, x_nd, found) if x_nd.device.type == "cuda" else next(iter(ways))
        return ways[asked if asked in ways else by_device]
    if way not in ways:
        given = f"{x_nd.dtype} latents of {x_nd.shape[1]} dimensions on {x_nd.device}"
        raise ValueError(f"{way!r} cannot search {given}; here: 'auto', {', '.join(map(repr, ways))}")
    return ways[way]


def available_ways(x_nd: Tensor) -> dict[str, Search]:
    """What can search latents like these, by name; first the one to take unmeasured."""
    ways: dict[str, Search] = {"blocks": nearest_by_blocks}
    if x_nd.dtype != torch.float32:
        return ways
    if x_nd.device.type == "cpu" and load_faiss() is not None:
        ways = {"faiss": nearest_by_faiss, **ways}
    on_gpu, interpreted = x_nd.device.type == "cuda", os.environ.get("TRITON_INTERPRET") == "1"
    module = _triton_search() if on_gpu or interpreted else None
    if module is not None and x_nd.shape[1] <= module.MAX_DIMS:
        if on_gpu and _triton_runs_on(x_nd.device):
            ways = {"triton": module.nearest_by_triton, **ways}
        elif interpreted:
            ways = {**ways, "triton": module.nearest_by_triton}
    return ways


@cache
def _triton_runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled and run: Triton needs a C compiler, and a device that is not too old."""
    module = _triton_search()
    assert module is not None
    probe_nd = torch.zeros(1, 16, device=device)
    try:
        module.nearest_by_triton(probe_nd, scoring(probe_nd, "l2"))
    except Exception as error:  # whatever keeps a compiler from working, the blocks do not need it
        warnings.warn(f"no fused search on {device}, searching by blocks: {error!r}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _import_or_none(module: str) -> ModuleType | None:
    try:
        return import_module(module)
    except ImportError:
        return None


load_faiss = cache(partial(_import_or_none, "faiss"))  # None where it is not installed
# Triton comes with torch for GPUs; it is large and slow to import, so only where it may be used.
_triton_search = cache(partial(_import_or_none, "driftvq.functional.triton_search"))


def nearest_by_blocks(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the highest score of every latent; float32 as precise as torch's matrix products are set to be."""
    return highest_by_blocks(scoring.centred(x_nd), scoring.weight_kd, scoring.penalty_k, beta=-0.5)


def highest_by_blocks(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """``argmax_k (x·w_k + β b_k)``, in blocks of latents."""
    indices_n = index_like(x_nd)
    for rows in row_blocks(len(x_nd), len(weight_kd), x_nd.device):
        highest(product(x_nd[rows], weight_kd, bias_k, beta), out=indices_n[rows])
    return indices_n


_highest_logit_op = operator("highest_logit", index_like)(highest_by_blocks)


def highest_by_blocks_of_codes(x_nd: Tensor, weight_kd: Tensor, bias_k: Tensor, beta: float = 1.0) -> Tensor:
    """The same in blocks of codes: in a graph that is exported their number is known, that of latents is not.

    A loop in the graph, as blocks one after the other would all be computed, and kept, before the first is used.
    """
    if len(weight_kd) <= EXPORTED_BLOCK_CODES:
        return torch.addmm(bias_k, x_nd, weight_kd.t(), beta=beta).argmax(dim=1)
    from torch._higher_order_ops.scan import scan

    missing, never = -len(weight_kd) % EXPORTED_BLOCK_CODES, -torch.inf if beta > 0 else torch.inf
    weight_bcd = F.pad(weight_kd, (0, 0, 0, missing)).unflatten(0, (-1, EXPORTED_BLOCK_CODES))
    bias_bc = F.pad(bias_k, (0, missing), value=never).unflatten(0, (-1, EXPORTED_BLOCK_CODES))
    start_b = torch.arange(len(bias_bc), device=x_nd.device) * EXPORTED_BLOCK_CODES

    def better(best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor, Tensor]) -> tuple[Any, Tensor]:
        weight_cd, bias_c, start = block
        score_n, place_n = torch.addmm(bias_c, x_nd, weight_cd.t(), beta=beta).max(dim=1)
        index_n = torch.where(score_n > best[0], place_n + start, best[1])
        return (torch.maximum(score_n, best[0]), index_n), start.clone()

    none = (x_nd.new_full((len(x_nd),), -torch.inf), torch.zeros(len(x_nd), dtype=torch.int64, device=x_nd.device))
    return cast("Tensor", scan(better, none, (weight_bcd, bias_bc, start_b))[0][1])


FAR = 2.0**32  # squared distance, in codebook sizes, from which faiss's ``|x|² - 2 x·c + |c|²`` is mostly ``|x|²``


def nearest_by_faiss(x_nd: Tensor, scoring: Scoring) -> Tensor:
    """Index of the nearest code of float32 latents on the CPU."""
    faiss = load_faiss()
    assert faiss is not None
    # Latents whose squared distances to the weights rank the codes as the score does.
    compared_nd = unit_rows(x_nd) if scoring.size is None else scoring.centred(x_nd).div_(scoring.size)
    latents, codes = compared_nd.contiguous().numpy(), scoring.weight_kd.contiguous().numpy()
    with _settings(faiss):
        distances_n1, indices_n1 = faiss.knn(latents, codes, 1)
    indices_n, far_n = torch.from_numpy(indices_n1[:, 0]), torch.from_numpy(~(distances_n1[:, 0] < FAR))  # NaN too
    if far_n.any():
        indices_n[far_n] = nearest_by_blocks(x_nd[far_n], scoring)
    return indices_n


class _Blocked:
    """Searches that rely on faiss's blocked kernels at this moment, and the setting to return to after the last."""

    lock, searches, threshold = threading.Lock(), 0, 0


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


ROUNDS, MARGIN = 3, 0.9  # less than this share of the preferred way's time wins: a draw is decided alike in every run
_remembered: dict[tuple[str, int, int, int], str] = {}


def fastest(ways: Mapping[str, Search], x_nd: Tensor, scoring: Scoring) -> str:
    """Name of the fastest way, measured on the first latents of a shape class; all ways find the same codes.

    The first way is taken unmeasured while a CUDA graph is captured, which allows no measurement; if algorithms are to
    be deterministic, since two ways may round a near-tie differently; and if torch's products may round to
    TensorFloat-32, which is not precise enough to search with.
    """
    preferred, codes = next(iter(ways)), len(scoring.weight_kd)
    if len(ways) == 1 or torch.are_deterministic_algorithms_enabled() or _rounds_to_tf32():
        return preferred
    # One class: the device, latents and codes up to the next power of two, and the dimension.
    shape = str(x_nd.device), (len(x_nd) - 1).bit_length(), (codes - 1).bit_length(), x_nd.shape[1]
    if shape not in _remembered:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return preferred
        best = {name: _milliseconds(partial(way, x_nd, scoring), x_nd.device) for name, way in ways.items()}
        quickest = min(best, key=lambda name: best[name])
        _remembered[shape] = quickest if best[quickest] < MARGIN * best[preferred] else preferred
    return _remembered[shape]


def _rounds_to_tf32() -> bool:
    """By torch's present setting, which knows what the former one says; to ask that one may be an error."""
    matmul = torch.backends.cuda.matmul
    present = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if present is None else present == "tf32"


def _milliseconds(call: Callable[[], Tensor], device: torch.device) -> float:
    """The best of a few rounds, after one that compiles and warms up."""
    seconds = []
    for _ in range(1 + ROUNDS):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds[1:])
