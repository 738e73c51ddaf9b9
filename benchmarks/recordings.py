"""What the library's quantizers do with the clouds of the playground, which its page plays.

    python benchmarks/recordings.py

writes it into the package; a test compares.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from driftvq.files import write_text
from driftvq.machine import torch_threads
from driftvq.toys import clouds, playground, rules

RECORDED = ("ns_vq", "trans_vq")
"""Quantizers of the library that the page shows."""


def page_cloud(demo: str, seed: int) -> clouds.Cloud:
    """The cloud that the page draws for a seed, number for number as its JavaScript does."""
    points, codes = (_normals(_stream(seed, name)) for name in ("points", "codebook"))
    initial, codebook = points((clouds.POINTS, 2)), codes((clouds.CODES, 2))
    matrix = clouds.random_matrix(_normals(_stream(seed, "matrix"))) if demo in clouds.SCALES else None
    order = np.stack([_permutation(_stream(seed, f"order {epoch}"), clouds.POINTS) for epoch in range(clouds.EPOCHS)])
    return clouds.build_cloud(demo, initial, codebook, order, matrix)


def _stream(seed: int, purpose: str) -> Iterator[float]:
    """Numbers uniform in [0, 1): mulberry32, seeded with a hash of seed and purpose (FNV-1a)."""
    state = 2166136261 ^ seed
    for letter in purpose:
        state = (state ^ ord(letter)) * 16777619 % 2**32
    while True:
        state = (state + 0x6D2B79F5) % 2**32
        mixed = (state ^ state >> 15) * (state | 1) % 2**32
        mixed ^= (mixed + (mixed ^ mixed >> 7) * (mixed | 61)) % 2**32
        yield (mixed ^ mixed >> 14) / 2**32


def _normals(uniform: Iterator[float]) -> Callable[[tuple[int, int]], clouds.Array]:
    """What draws arrays of N(0, 1) with an even number of entries (Box-Muller)."""

    def draw(shape: tuple[int, int]) -> clouds.Array:
        radii, angles = np.array([next(uniform) for _ in range(math.prod(shape))]).reshape(-1, 2).T
        radii, angles = np.sqrt(-2 * np.log(1 - radii)), 2 * np.pi * angles
        return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).reshape(shape)

    return draw


def _permutation(uniform: Iterator[float], count: int) -> list[int]:
    """The numbers 0 … count - 1 in random order (Fisher-Yates)."""
    numbers = list(range(count))
    for i in range(count - 1, 0, -1):
        j = math.floor(next(uniform) * (i + 1))
        numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers


def record(
    demos: Sequence[str] = clouds.DEMOS,
    methods: Sequence[str] = RECORDED,
    seed: int = playground.FIRST_SEED,
    steps: int = playground.STEPS,
) -> list[dict[str, Any]]:
    """Let quantizers of the library follow the page's clouds; their codes at the moments of the timeline.

    Args:
        demos, methods: of each of these a run.
        seed: of the page.
        steps: the last batch.
    """
    found = []
    for demo in demos:
        for method in methods:
            codes = _follow(page_cloud(demo, seed), method, seed, steps)
            kept = [np.round(codes[step], 3).ravel().tolist() for step in playground.moments() if step < len(codes)]
            found.append({"demo": demo, "seed": seed, "method": method, "codes": kept})
    return found


def _follow(cloud: clouds.Cloud, method: str, seed: int, steps: int) -> list[clouds.Array]:
    """The codes after 0, 1, 2, … batches."""
    learner = rules.make_learner(method, cloud.codebook, seed)
    codes = [learner.codebook]
    with torch_threads(1):
        for epoch in range(clouds.EPOCHS):
            for idxs in cloud.batches(epoch):
                if len(codes) > steps:
                    return codes
                learner.step_(cloud.batch(idxs))
                cloud.advance_(idxs)
                codes.append(learner.codebook)
            learner.end_epoch_()
    return codes


if __name__ == "__main__":
    argparse.ArgumentParser(description="Record the library's quantizers for the playground.").parse_args()
    place = Path(playground.__file__).parent / "assets" / playground.RECORDINGS
    write_text(place, json.dumps(record(), separators=(",", ":")) + "\n")
