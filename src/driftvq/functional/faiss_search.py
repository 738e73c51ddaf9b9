"""Nearest code by faiss, the fastest way on the CPU where it is installed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from driftvq.functional.block_search import nearest_by_blocks
from driftvq.functional.scoring import Scoring

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
