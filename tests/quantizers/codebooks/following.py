"""The parts of a following codebook, written again in NumPy and double precision from their equations."""

import inspect
from collections.abc import Callable

import numpy as np

from driftvq.functional import fit_field
from driftvq.quantizers.codebooks import drift as constants
from driftvq.quantizers.codebooks.following import MEMORY_SHARE, MIN_MEMORY, OUTLIER

Array = np.ndarray
Features = Callable[[Array], Array]
RIDGE = inspect.signature(fit_field).parameters["ridge"].default


def affine(standard_kd: Array) -> Array:
    return np.column_stack([np.ones(len(standard_kd)), standard_kd / np.sqrt(standard_kd.shape[1])])


def winners(z_nd: Array, codes_kd: Array) -> Array:
    return np.square(z_nd[:, None] - codes_kd).sum(axis=2).argmin(axis=1)


def spread(codes_kd: Array) -> float:
    return float(np.sqrt(np.square(codes_kd - codes_kd.mean(axis=0)).mean()))


class NumpyDrift:
    """``Δc = g · s · f(c) (W + V)``, one latent after another where that is how the equation reads."""

    def __init__(self, codes_kd: Array, features: Features = affine) -> None:
        self.codes, self.features = codes_kd.copy(), features
        count, dim = features(codes_kd[:1]).shape[1], codes_kd.shape[1]
        self.gram, self.joint = np.zeros((count, count)), np.zeros((count, dim))
        self.velocity, self.field = np.zeros((count, dim)), np.zeros((count, dim))
        self.gain, self.spread, self.reach = 0.0, 0.0, 0.0
        self.square, self.product = 0.0, 0.0

    def step_(self, z_nd: Array) -> None:
        now = spread(self.codes)
        standard = (self.codes - self.codes.mean(axis=0)) / now
        win = winners(z_nd, self.codes)
        away = (z_nd - self.codes[win]) / now
        if self.reach > 0:
            length = np.linalg.norm(away, axis=1, keepdims=True)
            away *= np.minimum(1, OUTLIER * self.reach / length)
        self.reach = np.sqrt(np.square(away).sum(axis=1).mean())
        total, every = len(z_nd), self.features(standard)
        seen, count = every[win], every.shape[1]

        ratio = self.spread / now if self.spread > 0 else 1.0
        self.joint, self.velocity, self.field = self.joint * ratio, self.velocity * ratio, self.field * ratio
        self.spread = now

        kept = np.exp(-total / (constants.MEMORY * count))
        slowly = kept ** (1 / constants.PERSISTENCE)
        distance = total * self.reach**2
        confirmed = self._confirmed(seen @ self.field, away, distance, max(slowly, constants.LEAST_KEPT))

        self.gram = kept * self.gram + sum(np.outer(f, f) for f in seen)
        self.joint = kept * self.joint + sum(np.outer(f, a) for f, a in zip(seen, away, strict=True))
        ridge = RIDGE * np.trace(self.gram) / count * np.eye(count)
        self.field = np.linalg.solve(self.gram + ridge, self.joint) + self.velocity
        length = np.square(seen @ self.field).sum() / distance
        self.field /= np.sqrt(max(length, 1))

        until_selected = max(len(self.codes) / total, 1)
        share = confirmed * min(length, 1) * until_selected**2
        self.gain = confirmed * min(share / constants.FOLLOWED_SHARE, 1)
        applied = self.gain * self.field
        self.joint = self.joint - self.gram @ (applied - self.velocity)
        self.velocity = slowly * self.velocity + (1 - slowly) * applied
        self.codes = self.codes + now * every @ applied

    def _confirmed(self, before_nd: Array, away_nd: Array, distance: float, kept: float) -> float:
        """How much of the field before this one the batch confirms; what was applied counts as confirmed."""
        square = np.square(before_nd).sum()
        product = (before_nd * away_nd).sum() + constants.CREDIT * self.gain * square
        unit = max(distance, square)
        self.square = kept * self.square + (1 - kept) * square / unit
        self.product = kept * self.product + (1 - kept) * product / unit
        return float(np.clip(self.product / self.square, 0, 1)) if self.square > 0 else 0.0


class NumpyWinners:
    """Online k-means whose memory grows with all latents seen."""

    def __init__(self, codes_kd: Array) -> None:
        self.codes, self.memory, self.seen = codes_kd.copy(), np.full(len(codes_kd), MIN_MEMORY), 0

    def step_(self, z_nd: Array) -> None:
        win = winners(z_nd, self.codes)
        self.seen += len(z_nd)
        self.memory *= np.exp(-len(z_nd) / max(MEMORY_SHARE * self.seen, MIN_MEMORY * len(self.codes)))
        for k in np.unique(win):
            mine = z_nd[win == k]
            self.memory[k] += len(mine)
            self.codes[k] += len(mine) / self.memory[k] * (mine.mean(axis=0) - self.codes[k])
