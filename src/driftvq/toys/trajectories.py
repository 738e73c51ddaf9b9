"""Runs of the toy demos: trajectories of t moments, k codes and n points, the k-means optimum and the table."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from driftvq.machine import torch_threads
from driftvq.names import check_name
from driftvq.toys.clouds import BATCH_SIZE, DEMOS, EPOCHS, POINTS, SPEED, Array, Cloud, make_cloud
from driftvq.toys.rules import METHODS, SHOWN_METHODS, Learner, make_learners, squared_distances

DRIFT_LEFT = (0.6, 0.25, 0.02)  # the inner snapshots show the cloud when this share of its way is left


class Snapshot(NamedTuple):
    """One moment of a figure: its step, and the batch just learned from ``(b, 2)``."""

    step: int
    batch: Array


@dataclass(frozen=True)
class Trajectory:
    """A codebook following a cloud; moment 0 is the start, moment t comes after t steps."""

    demo: str
    method: str
    seed: int
    cloud: Cloud  # at the end of its way
    drifts: Sequence[Array]  # the state of its drift at every moment
    codebooks: Array  # at every moment, (t, k, 2)
    usage: Array  # share of the codes that are nearest to some point of the whole cloud, (t,)
    distortion: Array  # mean squared distance of the whole cloud to its nearest codes, (t,)
    snapshots: tuple[Snapshot, ...]

    def positions(self, step: int) -> Array:
        """The whole cloud that the codes of a moment were measured on, ``(n, 2)``."""
        return self.cloud.positions(self.drifts[step])

    @property
    def codes_used(self) -> int:
        """Codes in use at the end."""
        used: int = round(self.usage[-1] * self.codebooks.shape[1])
        return used


def measure(codebook: Array, positions: Array) -> tuple[float, float]:
    """Usage and distortion of a codebook on a whole cloud."""
    distances = squared_distances(codebook, positions)
    return len(np.unique(distances.argmin(axis=1))) / len(codebook), float(distances.min(axis=1).mean())


def run_demos(
    runs: Sequence[tuple[str, int]], method: str, *, n: int = POINTS, batch_size: int = BATCH_SIZE,
    epochs: int = EPOCHS, speed: float = SPEED, learner: Callable[[Array], Learner] | None = None,
) -> list[Trajectory]:  # fmt: skip
    """Let a method follow several clouds side by side, which costs the sample-by-sample rule little more than one.

    Each run is a demo and a seed, which gives the cloud, the first codebook, the order and the first weights; ``n`` is
    the points of a cloud, ``speed`` its drift rate r. ``learner`` makes one of all runs from their first codebooks
    ``(s, k, 2)``, instead of that of the method, which is then any name.
    """
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size must lie between 1 and the {n} points of the cloud, got {batch_size}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    clouds = [make_cloud(demo, seed, n, epochs=epochs) for demo, seed in runs]
    codebooks = np.stack([cloud.codebook for cloud in clouds])
    follower = make_learners(method, codebooks, [seed for _, seed in runs]) if learner is None else learner(codebooks)
    batches = [cloud.batch(cloud.order[0, :batch_size]) for cloud in clouds]
    moments = [(follower.codebook, [cloud.drift for cloud in clouds], batches)]
    with torch_threads(1):  # sixteen codes in the plane gain nothing from a second one, and may wait long for it
        for epoch in range(epochs):
            for idxs in zip(*(cloud.batches(epoch, batch_size) for cloud in clouds), strict=True):
                batches = [cloud.batch(chosen) for cloud, chosen in zip(clouds, idxs, strict=True)]
                follower.step_(np.stack(batches))
                moments.append((follower.codebook, [cloud.drift for cloud in clouds], batches))
                for cloud, chosen in zip(clouds, idxs, strict=True):
                    cloud.advance_(chosen, speed)
            follower.end_epoch_()
    steps, rate = len(moments) - 1, -math.log1p(-min(speed, 0.99))
    shown = (0, *(min(steps, max(1, round(-math.log(left) / rate))) for left in DRIFT_LEFT), steps)
    trajectories = []
    for i, (cloud, (demo, seed)) in enumerate(zip(clouds, runs, strict=True)):
        codes, drifts = np.stack([codebook[i] for codebook, _, _ in moments]), [drift[i] for _, drift, _ in moments]
        found = [measure(book, cloud.positions(drift)) for book, drift in zip(codes, drifts, strict=True)]
        usage, distortion = np.array(found).T
        snapshots = tuple(Snapshot(step, moments[step][2][i]) for step in shown)
        trajectories.append(Trajectory(demo, method, seed, cloud, drifts, codes, usage, distortion, snapshots))
    return trajectories


def kmeans_optimum(positions: Array, codes: int, restarts: int = 10) -> tuple[Array, float]:
    """The best of several k-means runs (scikit-learn): codes ``(k, 2)`` and distortion."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # waiting for a second thread takes longer than these few points
        fit = KMeans(codes, n_init=restarts, random_state=0).fit(positions)
    return fit.cluster_centers_, float(fit.inertia_ / len(positions))


class Row(NamedTuple):
    """A line of the table: per seed, the codes used and the distortion over the k-means optimum, both at the end."""

    demo: str
    method: str
    codes_used: Array
    relative_distortion: Array


def toy_table(
    seeds: int | Sequence[int] = 5, methods: Iterable[str] = SHOWN_METHODS, demos: Iterable[str] = DEMOS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:  # fmt: skip
    """Usage and distortion ÷ optimum of every method in every demo; ``seeds``: how many, from 0 on, or which."""
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    methods = [check_name("method", method, METHODS) for method in methods]
    runs = [(check_name("demo", demo, DEMOS), seed) for demo in demos for seed in chosen]
    rows = []
    optima: dict[tuple[str, int], float] = {}
    for method in methods:
        trajectories = run_demos(runs, method)
        progress(f"{method}: {len(runs)} runs")
        for run, trajectory in zip(runs, trajectories, strict=True):
            if run not in optima:
                _, optima[run] = kmeans_optimum(trajectory.positions(-1), trajectory.codebooks.shape[1])
        for demo in dict.fromkeys(demo for demo, _ in runs):
            of_demo = [trajectory for trajectory in trajectories if trajectory.demo == demo]
            used = [trajectory.codes_used for trajectory in of_demo]
            relative = [trajectory.distortion[-1] / optima[demo, trajectory.seed] for trajectory in of_demo]
            rows.append(Row(demo, method, np.array(used, dtype=np.float64), np.array(relative)))
    return sorted(rows, key=lambda row: DEMOS.index(row.demo))


def format_table(rows: Sequence[Row]) -> str:
    """The table as Markdown: mean ± standard deviation over the seeds."""
    lines = ["| demo | method | codes used of 16 | distortion ÷ k-means |", "|---|---|---|---|"]
    for row in rows:
        used, relative = row.codes_used, row.relative_distortion
        numbers = f"{used.mean():.1f} ± {used.std():.1f} | {relative.mean():.2f} ± {relative.std():.2f}"
        lines.append(f"| {row.demo} | {row.method} | {numbers} |")
    return "\n".join(lines)
