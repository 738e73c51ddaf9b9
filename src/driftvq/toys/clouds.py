"""The drifting clouds of Suppl. 11, in the plane: n points, of which b make a batch, k codes, e epochs.

Every random number of a demo is drawn in :func:`make_cloud`, so the same arrays can be handed to another
implementation. What the supplement leaves open is chosen here and argued in ``docs/toys.md``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftvq.names import check_name

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
DEMOS = ("translation", "expansion", "shrinking", "split")
POINTS, CODES, BATCH_SIZE, EPOCHS = 1500, 16, 100, 30
SPEED, SHIFT, EXPANSION, SHRINKAGE = 0.1, 10.0, 5.0, 0.2
SCALES = {"expansion": EXPANSION, "shrinking": SHRINKAGE}
MAX_CONDITION, SPLIT_MEAN = 3.0, 0.5


class Cloud(ABC):
    """A cloud on its way from its initial points to its targets, both ``(n, 2)``.

    ``codebook`` are the codes at the start, ``(k, 2)``, from N(0, 1); ``order``, that of the points in each epoch,
    ``(e, n)``; ``drift``, the state of the drift: θ of shape ``(2,)``, or the matrix A of shape ``(2, 2)``.
    """

    drift: Array

    def __init__(self, demo: str, initial: Array, targets: Array, codebook: Array, order: Indices) -> None:
        self.demo, self.initial, self.targets, self.codebook, self.order = demo, initial, targets, codebook, order

    def positions(self, drift: Array | None = None) -> Array:
        """The whole cloud now, ``(n, 2)``, or as it was in another state of the drift."""
        return self._moved(slice(None), self.drift if drift is None else drift)

    def batch(self, idxs: Any) -> Array:
        """The points of a batch now, ``(b, 2)``."""
        return self._moved(idxs, self.drift)

    def batches(self, epoch: int, batch_size: int = BATCH_SIZE) -> list[Indices]:
        """The batches of an epoch, as indices; a last batch that would be smaller is left out."""
        full = len(self.initial) // batch_size
        return list(self.order[epoch, : full * batch_size].reshape(full, batch_size))

    @abstractmethod
    def advance_(self, idxs: Any, speed: float = SPEED) -> None:
        """Move the drift as this batch asks, with rate r = ``speed``."""

    @abstractmethod
    def _moved(self, idxs: Any, drift: Array) -> Array:
        """Where the drift has brought these points."""


class Shifting(Cloud):
    """``X = X_init + s ⊙ θ``, ``Y = X_init + 10 s``, ``θ += r · mean(s_b ⊙ (Y_b - X_b))``.

    In a translation s = 1. In a split ``s = sign(X_init)``; there, the supplement prints ``mean(Y_b - X_b)``, whose
    terms of opposite sign cancel: they add up to mean(s) of the drift, 0.38 of it for its cloud around (0.5, 0.5) and
    nothing for a centred one. With s inside, θ descends ``|Y_b - X_b|²``, as in the other demos.
    """

    def __init__(self, demo: str, initial: Array, signs: Array, codebook: Array, order: Indices) -> None:
        super().__init__(demo, initial, initial + SHIFT * signs, codebook, order)
        self.signs, self.drift = signs, np.zeros(2)

    def advance_(self, idxs: Any, speed: float = SPEED) -> None:
        error = self.targets[idxs] - self.batch(idxs)
        self.drift = self.drift + speed * (self.signs[idxs] * error).mean(axis=0)

    def _moved(self, idxs: Any, drift: Array) -> Array:
        return np.asarray(self.initial[idxs] + self.signs[idxs] * drift)


class Scaling(Cloud):
    """``X = X_init Aᵀ``, ``Y = X_init Mᵀ``, ``A += r · 2/B · (Y_b - X_b)ᵀ X_init,b``; A starts as the identity."""

    drift = np.eye(2)

    def advance_(self, idxs: Any, speed: float = SPEED) -> None:
        start = self.initial[idxs]
        error = self.targets[idxs] - self.batch(idxs)
        self.drift = self.drift + speed * (2 / len(start)) * error.T @ start

    def _moved(self, idxs: Any, drift: Array) -> Array:
        return np.asarray(self.initial[idxs] @ drift.T)


def make_cloud(demo: str, seed: int, n: int = POINTS, codes: int = CODES, epochs: int = EPOCHS) -> Cloud:
    """The cloud of a demo, its first codebook and the order of its points, of which more epochs are more at the end."""
    check_name("demo", demo, DEMOS)
    rng = np.random.default_rng(seed)
    initial = rng.standard_normal((n, 2))
    codebook = rng.standard_normal((codes, 2))
    matrix = random_matrix(rng.standard_normal) if demo in SCALES else None
    order = np.stack([rng.permutation(n) for _ in range(epochs)])
    return build_cloud(demo, initial, codebook, order, matrix)


def build_cloud(demo: str, normal: Array, codebook: Array, order: Indices, matrix: Array | None) -> Cloud:
    """The cloud of a demo from points of N(0, 1) and, where it is scaled, from M of norm 1."""
    if demo == "translation":
        return Shifting(demo, normal, np.ones_like(normal), codebook, order)
    if demo == "split":
        return Shifting(demo, normal + SPLIT_MEAN, np.sign(normal + SPLIT_MEAN), codebook, order)
    assert matrix is not None
    return Scaling(demo, normal, normal @ (SCALES[demo] * matrix).T, codebook, order)


def random_matrix(normals: Callable[[tuple[int, int]], Array]) -> Array:
    """M with ``|M|₂ = 1``: Gaussian, drawn again while it would flatten the cloud, then scaled."""
    while True:
        matrix = normals((2, 2))
        largest, smallest = np.linalg.svd(matrix, compute_uv=False)
        if largest <= MAX_CONDITION * smallest:
            return np.asarray(matrix / largest)
