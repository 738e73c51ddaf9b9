"""The parts of a following codebook, written again in NumPy and double precision from their equations."""

from collections.abc import Callable

import numpy as np

from driftvq.quantizers.codebooks import drift as constants
from driftvq.quantizers.codebooks.clock import FIRST_LOOKS, GLANCE_INTERVAL, INTERVAL, LOOK_INTERVAL
from driftvq.quantizers.codebooks.following import (
    FIRST_MEMORY,
    LEAST_MEMORY,
    LEAST_REACH,
    MEMORY_SHARE,
    MIN_MEMORY,
    OUTLIER,
)

Array = np.ndarray
Features = Callable[[Array], Array]


def affine(codes_kd: Array) -> Array:
    return np.column_stack([np.ones(len(codes_kd)), codes_kd / np.sqrt(codes_kd.shape[1])])


def winners(z_nd: Array, codes_kd: Array) -> Array:
    return np.square(z_nd[:, None] - codes_kd).sum(axis=2).argmin(axis=1)


class NumpyFrame:
    """Where latents are seen from, and when it is looked at again."""

    def __init__(self, codes_kd: Array) -> None:
        self.since, self.limit = 0, np.inf
        self.spread = 1.0
        self.look_(codes_kd)

    def look_(self, codes_kd: Array) -> float:
        """How many times as long distances are in the new units."""
        before, self.origin = self.spread, codes_kd.mean(axis=0)
        self.spread = float(np.sqrt(np.square(codes_kd - self.origin).mean()))
        self.limit *= before / self.spread
        return before / self.spread

    def due(self) -> bool:
        self.since += 1
        return self.since <= FIRST_LOOKS or (self.since - FIRST_LOOKS) % LOOK_INTERVAL == 1

    def away(self, z_nd: Array, codes_nd: Array) -> Array:
        away = (z_nd - codes_nd) / self.spread
        length = np.linalg.norm(away, axis=1, keepdims=True)
        return away * np.minimum(1, self.limit / length)


class NumpyDrift:
    """``Δc = g · f(c) (W + V)`` in the frame, one latent after another where that is how the equation reads.

    The features have mean square 1 over each kind of them, and the ridge is a share of the mean of all.
    """

    def __init__(self, codes_kd: Array, features: Features = affine, kinds: int = 2) -> None:
        self.codes, self.features, self.frame, self.kinds = codes_kd.copy(), features, NumpyFrame(codes_kd), kinds
        count, dim = features(codes_kd[:1]).shape[1], codes_kd.shape[1]
        self.gram, self.joint = np.zeros((count, count)), np.zeros((count, dim))
        self.gram[0, 0] = 1
        self.velocity, self.field = np.zeros((count, dim)), np.zeros((count, dim))
        self.gain, self.until, self.unrelated = 0.0, 1.0, 0.0
        self.square, self.lag, self.speed = 0.0, 0.0, constants.NEEDED_SHARE / constants.PATIENCE**2

    def step_(self, z_nd: Array) -> None:
        frame, total = self.frame, len(z_nd)
        win = winners(z_nd, self.codes)
        away = frame.away(z_nd, self.codes[win])
        every = self.features((self.codes - frame.origin) / frame.spread)
        seen, count = every[win], every.shape[1]
        due = frame.due()

        kept = np.exp(-total / (constants.MEMORY * count))
        slowly = kept ** (1 / constants.PERSISTENCE)
        persisted = max(slowly, np.exp(-total / len(self.codes)))
        distance = np.square(away).sum()
        if due:
            self.unrelated = (1 - persisted) / (1 + persisted)
            self.until = (constants.PATIENCE * max(len(self.codes) / total, 1)) ** 2

        # With several latents per code little changes from one step to the next.
        interval = INTERVAL if total // len(self.codes) >= 2 else 1
        since = frame.since - 1 - FIRST_LOOKS
        if interval > 1 and not due and since % GLANCE_INTERVAL > 0 and self.gain <= constants.AT_REST:
            return
        if due or since % interval == 0:
            self._judge_(seen, away, distance, interval * min(1 - slowly, constants.MOST_NEWS))
            self.gain = self._confirmed() * self._need()

        self.gram = kept * self.gram + sum(np.outer(f, f) for f in seen)
        self.joint = kept * self.joint + sum(np.outer(f, a) for f, a in zip(seen, away, strict=True))
        ridge = constants.RIDGE * self.kinds / count * self.gram[0, 0] * np.eye(count)
        self.field = np.linalg.solve(self.gram + ridge, self.joint) + self.velocity

        applied = self.gain * self.field
        self.joint = self.joint - self.gram @ (applied - self.velocity)
        self.velocity = persisted * self.velocity + (1 - persisted) * applied
        self.codes = self.codes + frame.spread * every @ applied
        if due:
            frame.limit = OUTLIER * max(np.sqrt(distance / total), LEAST_REACH)
            self.rescale_(frame.look_(self.codes))

    def rescale_(self, ratio: float) -> None:
        self.joint, self.velocity, self.field = self.joint * ratio, self.velocity * ratio, self.field * ratio

    def _judge_(self, seen_np: Array, away_nd: Array, distance: float, new: float) -> None:
        """What the batch shows of the field before it and of the velocity, in shares of the squared distances."""
        before_nd = seen_np @ self.field
        square = np.square(before_nd).sum()
        unit = max(distance, square)
        self.square += new * (square / unit - self.square)
        self.lag += new * ((before_nd * away_nd).sum() / unit - self.lag)
        self.speed += new * (np.square(seen_np @ self.velocity).sum() / unit - self.speed)

    def _confirmed(self) -> float:
        """How much of the field the batches after it confirm; most of what was applied counts as confirmed."""
        shown = self.lag / self.square if self.square > 0 else 0.0
        return float(np.clip(shown + constants.CREDIT * self.gain, 0, 1))

    def _need(self) -> float:
        """How far codes would fall behind without the drift."""
        speed = self.speed - self.unrelated * self.gain**2 * self.square
        lag, speed = max(self.lag, 0) / constants.NEEDED_SHARE, max(speed, 0) / constants.NEEDED_SHARE
        return min(lag**2 + self.until * speed, 1.0)


class NumpyWinners:
    """Online k-means whose memory grows with all latents seen."""

    def __init__(self, codes_kd: Array) -> None:
        self.codes, self.memory, self.seen = codes_kd.copy(), np.full(len(codes_kd), FIRST_MEMORY), 0
        self.frame, self.horizon = NumpyFrame(codes_kd), MIN_MEMORY * len(codes_kd)

    def step_(self, z_nd: Array) -> None:
        win = winners(z_nd, self.codes)
        self.seen += len(z_nd)
        self.memory *= np.exp(-len(z_nd) / self.horizon)
        for k in np.unique(win):
            mine = z_nd[win == k]
            self.memory[k] += len(mine)
            self.codes[k] += len(mine) / self.memory[k] * (mine.mean(axis=0) - self.codes[k])
        if self.frame.due():
            self.horizon = max(MEMORY_SHARE * self.seen, MIN_MEMORY * len(self.codes))
            self.memory = np.maximum(self.memory, LEAST_MEMORY)
