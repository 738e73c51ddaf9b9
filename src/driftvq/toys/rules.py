"""The toy rules of Suppl. 11 as pure functions, and learners that apply them: s runs, k codes, batches of b points."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from driftvq.names import check_name
from driftvq.quantizers import QUANTIZERS, Quantizer, TransVQPaper, make_quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.following import FollowingCodes
from driftvq.quantizers.ns_vq_paper import SpreadingCodes
from driftvq.toys.clouds import Array, Indices

ALPHA, ADAM_LR, LIBRARY_LR = 0.3, 0.03, 0.001
FIRST_TAU, FIRST_LR, TAU_DECAY, LR_DECAY = 4.0, 0.5, 0.5, 0.9


def squared_distances(codebook: Array, points: Array) -> Array:
    """``|x_i - c_k|²``: ``(…, b, k)`` from codes ``(…, k, 2)`` and points ``(…, b, 2)``."""
    along_x, along_y = (points[..., :, None, axis] - codebook[..., None, :, axis] for axis in range(2))
    return np.asarray(along_x * along_x + along_y * along_y)


def winners(codebook: Array, points: Array) -> Indices:
    """``w_i = argmin_k |x_i - c_k|²``; ties go to the lowest index."""
    return np.asarray(squared_distances(codebook, points).argmin(axis=-1))


def ema_update(codebook: Array, batch: Array, alpha: float = ALPHA) -> Array:
    """Vanilla: ``c_k ← (1-α) c_k + α · mean{x_i : w_i = k}`` for every code that won a point; the others stay."""
    one_hot = (winners(codebook, batch)[..., None, :] == np.arange(codebook.shape[-2])[:, None]).astype(np.float64)
    count = one_hot.sum(axis=-1, keepdims=True)
    mean = (one_hot @ batch) / np.maximum(count, 1)
    return np.where(count > 0, (1 - alpha) * codebook + alpha * mean, codebook)


def ns_vq_update(codebook: Array, batch: Array, lr: float, tau: float) -> Array:
    """NS-VQ, sample by sample: every point moves its winner by lr and the others by lr times a kernel.

    ``d_k = |c_k - c_w|²``,  ``ω_k = e^{-d_k/τ} / Σ_j e^{-d_j/τ}``,
    ``c_w += lr (x - c_w)``,  ``c_k += lr ω_k (x - c_k)`` for k ≠ w

    The kernel measures from the code to the *winner*, not to the point. Shapes as in :func:`squared_distances`.
    """
    codes = codebook.reshape(-1, *codebook.shape[-2:]).copy()
    run = np.arange(len(codes))
    for x in batch.reshape(-1, *batch.shape[-2:]).swapaxes(0, 1)[:, :, None]:
        pull = x - codes
        winner = np.einsum("skd,skd->sk", pull, pull).argmin(axis=1)
        apart = pull - pull[run, winner][:, None]
        weights = np.exp(np.einsum("skd,skd->sk", apart, apart) / -tau)
        weights *= lr / np.add.reduce(weights, axis=1, keepdims=True)
        weights[run, winner] = lr
        codes += weights[:, :, None] * pull
    return codes.reshape(codebook.shape)


class Learner(Protocol):
    """A codebook that follows batches; of s runs side by side, every shape begins with s."""

    @property
    def codebook(self) -> Array:
        """The codes now, ``(k, 2)``."""

    def step_(self, batch: Array) -> None:
        """Learn from a batch ``(b, 2)``."""

    def end_epoch_(self) -> None:
        """Tell that every point was seen once."""


class EMALearner:
    """Vanilla VQ: :func:`ema_update`."""

    def __init__(self, codebook: Array, alpha: float = ALPHA) -> None:
        self.codebook, self.alpha = codebook.copy(), alpha

    def step_(self, batch: Array) -> None:
        self.codebook = ema_update(self.codebook, batch, self.alpha)

    def end_epoch_(self) -> None:
        """Vanilla VQ knows no schedule."""


class NSVQToyLearner:
    """NS-VQ: :func:`ns_vq_update`; after each epoch ``τ ← τ/2`` and ``lr ← 0.9 lr``."""

    def __init__(self, codebook: Array, lr: float = FIRST_LR, tau: float = FIRST_TAU) -> None:
        self.codebook, self.lr, self.tau = codebook.copy(), lr, tau

    def step_(self, batch: Array) -> None:
        self.codebook = ns_vq_update(self.codebook, batch, self.lr, self.tau)

    def end_epoch_(self) -> None:
        self.tau *= TAU_DECAY
        self.lr *= LR_DECAY


class QuantizerLearner:
    """Any quantizer of the library, in training mode, on two-dimensional latents.

    Its trainable parameters, if it has any, follow Adam on its own loss plus the reconstruction error of a decoder that
    is the identity; what moves its codes by statistics does so in the forward pass.
    """

    def __init__(self, quantizer: Quantizer, lr: float = LIBRARY_LR) -> None:
        self.quantizer = quantizer.double().train()
        parameters = [p for p in quantizer.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=lr) if parameters else None

    @property
    def codebook(self) -> Array:
        places = self.quantizer.indices_per_position
        indices = torch.arange(self.quantizer.codebook_size)
        if places:
            indices = torch.cartesian_prod(*[indices] * places).reshape(-1, places)
        with torch.no_grad():
            return self.quantizer.indices_to_codes(indices).double().numpy()

    def step_(self, batch: Array) -> None:
        x = torch.from_numpy(batch)
        quantized, _, loss = self.quantizer(x)
        loss = loss + F.mse_loss(quantized, x)
        if self.optimizer is not None and loss.requires_grad:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def end_epoch_(self) -> None:
        for part in self.quantizer.modules():
            if isinstance(part, SpreadingCodes):
                part.decay_bandwidth_()


class SideBySide:
    """Learners that each know one run only, as a learner of them all."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = learners

    @property
    def codebook(self) -> Array:
        return np.stack([learner.codebook for learner in self.learners])

    def step_(self, batch: Array) -> None:
        for learner, part in zip(self.learners, batch, strict=True):
            learner.step_(part)

    def end_epoch_(self) -> None:
        for learner in self.learners:
            learner.end_epoch_()


class TransVQToyLearner(QuantizerLearner):
    """TransVQ as printed, with a small residual MLP over the first codes; only its loss's codebook term moves φ."""

    def __init__(self, codebook: Array, lr: float = ADAM_LR) -> None:
        quantizer = TransVQPaper(dim=2, codebook_size=len(codebook), transform="mlp", width=32, residual=True)
        super().__init__(quantizer, lr)
        quantizer.set_codebook_(torch.from_numpy(codebook))


def library_learner(name: str, codebook: Array) -> QuantizerLearner:
    """A learner for a registered quantizer with its defaults; with q indices per position, each has ``16^(1/q)`` codes.

    A codebook that follows starts at the given codes, not at k-means of a first batch: to see it follow, not begin.
    """
    codes = len(codebook)
    places = make_quantizer(name, dim=2, codebook_size=codes).indices_per_position
    size = round(codes ** (1 / places)) if places else codes
    learner = QuantizerLearner(make_quantizer(name, dim=2, codebook_size=size))
    quantizer = learner.quantizer
    if isinstance(quantizer, CodebookQuantizer) and isinstance(quantizer.book, FollowingCodes):
        quantizer.set_codebook_(torch.from_numpy(codebook))
    return learner


PAPER_METHODS = ("vanilla", "ns_vq_toy", "trans_vq_toy")  # of the paper's figures
SHOWN_METHODS = ("vanilla", "ns_vq", "ns_vq_toy", "trans_vq", "trans_vq_toy")
"""What is shown by default: vanilla VQ, and each cure as the library has it beside the paper's rule."""
STACKABLE = ("vanilla", "ns_vq_toy")  # methods whose learner takes any number of runs at once
METHODS: dict[str, Callable[[Array], Learner]] = {
    "vanilla": EMALearner,
    "ns_vq_toy": NSVQToyLearner,
    "trans_vq_toy": TransVQToyLearner,
    **{name: partial(library_learner, name) for name in QUANTIZERS},
}
"""What makes a learner from the first codebook: the toy methods, and every registered quantizer by its name."""


def make_learner(method: str, codebook: Array, seed: int = 0) -> Learner:
    """A learner by name; ``seed`` draws the first weights of those that have any."""
    check_name("method", method, METHODS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return METHODS[method](codebook)


def make_learners(method: str, codebooks: Array, seeds: Sequence[int]) -> Learner:
    """One learner of s runs side by side, from their first codebooks ``(s, k, 2)`` and their seeds."""
    if check_name("method", method, METHODS) in STACKABLE:
        return METHODS[method](codebooks)
    return SideBySide([make_learner(method, codes, seed) for codes, seed in zip(codebooks, seeds, strict=True)])
