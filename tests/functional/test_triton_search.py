"""The fused kernel: its results in Triton's interpreter, and that it compiles for GPUs that are not at hand.

Triton decides at its import whether it interprets or compiles, so each is done in a process of its own.
"""

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from driftvq.functional import METRICS, nearest
from tests.functional.search_oracle import assert_nearest, integer_ties, randn, scores_nk

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason='needs Triton: pip install ".[triton]"'
)
SHAPES = [
    (0, 5, 3),
    (1, 1, 1),
    (200, 1, 4),
    (65, 130, 3),
    (64, 300, 8),
    (63, 129, 9),
    (128, 64, 16),
    (70, 77, 17),
    (33, 500, 64),
    (10, 200, 100),
    (1, 65, 255),
    (9, 70, 256),
]
TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)]
SHARED_MEMORY = 64 * 1024
"""Bytes that every one of the targets has for a program."""

TIMEOUT_SECONDS = 120


def start(interpret: str, cache: str) -> None:
    os.environ.update(TRITON_INTERPRET=interpret, TRITON_CACHE_DIR=cache)
    torch.set_num_threads(1)


def pool(interpret: str, cache: Path) -> Iterator[Callable[..., Any]]:
    with multiprocessing.get_context("spawn").Pool(1, start, (interpret, str(cache))) as processes:
        yield lambda function, *args: run(processes, function, args)


def run(processes: Pool, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return processes.apply_async(function, args).get(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    yield from pool("1", tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    yield from pool("0", tmp_path_factory.mktemp("triton"))


def fused(x: np.ndarray, codebook: np.ndarray, metric: str = "l2", processors: int = 1) -> np.ndarray:
    from driftvq.functional import triton_search

    triton_search._processors = lambda device: processors
    return nearest(torch.from_numpy(x), torch.from_numpy(codebook), metric, way="triton").numpy()


def on_kernel(interpreted, x, codebook, *args):
    return torch.from_numpy(interpreted(fused, x.numpy(), codebook.numpy(), *args))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("n", "k", "d"), SHAPES)
def test_the_kernel_agrees_with_float64(interpreted, metric, n, k, d):
    x, codebook = randn(n, d) + 2, randn(k, d, seed=1) + 2
    found = on_kernel(interpreted, x, codebook, metric)
    assert_nearest(found, x, codebook, metric)
    assert (found == nearest(x, codebook, metric, "blocks")).float().mean() > 0.99 or n == 0


@pytest.mark.parametrize("d", [3, 20])
def test_parts_of_the_codebook_searched_at_once_change_nothing(interpreted, d):
    x, codebook = randn(70, d), randn(500, d, seed=1)
    whole, parts = (on_kernel(interpreted, x, codebook, "l2", processors) for processors in (1, 3))
    assert torch.equal(whole, parts)
    assert_nearest(parts, x, codebook)


@pytest.mark.parametrize("processors", [1, 3])
@pytest.mark.parametrize("d", [2, 8, 17, 40])
def test_ties_go_to_the_lowest_index(interpreted, d, processors):
    x, codebook = integer_ties(24, 200, d, seed=d)
    found = on_kernel(interpreted, x, codebook, "l2", processors)
    np.testing.assert_array_equal(found.numpy(), scores_nk(x, codebook, "l2").argmin(axis=1))


@pytest.mark.parametrize("scale", [1e-18, 1e18])
@pytest.mark.parametrize("d", [4, 64])
def test_any_scale(interpreted, scale, d):
    x, codebook = scale * randn(40, d), scale * randn(50, d, seed=1)
    assert_nearest(on_kernel(interpreted, x, codebook), x.double() / scale, codebook.double() / scale)


@pytest.mark.parametrize("d", [4, 20])
def test_what_is_not_finite_gets_a_valid_index(interpreted, d):
    x = randn(5, d)
    x[1], x[2] = torch.nan, torch.inf
    codebook = randn(70, d, seed=1)
    found = on_kernel(interpreted, x, codebook)
    assert ((found >= 0) & (found < 70)).all()
    assert_nearest(found[[0, 3, 4]], x[[0, 3, 4]], codebook)


def compiled(target: tuple[Any, ...], dims: int, centred: bool) -> tuple[list[str], int, bool]:
    """Kinds of code that come out, the shared memory they need, and whether products are rounded to TF32."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from driftvq.functional import triton_search

    constants, options = triton_search.constants(dims)
    signature = dict.fromkeys(("x_nd", "origin_d", "weight_kd", "penalty_k", "best_pn"), "*fp32")
    signature |= {"index_pn": "*i64"} | dict.fromkeys(("latents", "codes", "codes_per_part"), "i32")
    if not centred:
        constants["origin_d"] = None
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(triton_search.kernel, signature, constants)
    binary = triton.compile(source, target=GPUTarget(*target), options=options)
    return list(binary.asm), binary.metadata.shared, "tf32" in str(binary.asm)


@pytest.mark.parametrize("centred", [True, False], ids=["l2", "cosine"])
@pytest.mark.parametrize("dims", [3, 16, 256])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
def test_the_kernel_compiles_for(compiler, target, dims, centred):
    kinds, shared, tf32 = compiler(compiled, target, dims, centred)
    assert ("cubin" if target[0] == "cuda" else "hsaco") in kinds
    assert shared <= SHARED_MEMORY
    assert not tf32


def test_more_dimensions_than_the_kernel_takes_are_refused(interpreted):
    with pytest.raises(ValueError, match=r"'triton' cannot search .* latents of 257 dimensions on cpu; here: 'auto', "):
        on_kernel(interpreted, randn(3, 257), randn(4, 257))
