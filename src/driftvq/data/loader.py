"""Batches of images, and the processes that read them: the batch of a step is a pure function of seed and step."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from driftvq.data.images import CROPS, BadImageError, Pixels, Problems
from driftvq.data.rows import EvalRows, Part, TrainRows
from driftvq.data.sources import ImageSource
from driftvq.names import check_name

GRACE_SECONDS = 60.0  # how long a worker goes on after SIGTERM
PARENT_SECONDS = 1.0  # how often a worker looks whether anybody still wants its batches


class ImageBatch(NamedTuple):
    """uint8 images ``(b, 3, h, w)``, their names, and what could not be read, each once, as (name, reason)."""

    images: Tensor
    names: list[str]
    skipped: Problems


_Finish = Callable[[Iterator[Part], Problems], Iterator[ImageBatch]]


class Batches(AbstractContextManager["Batches"]):
    """Batches that can be iterated over again and again; ``close`` ends the worker processes."""

    def __init__(self, rows: TrainRows | EvalRows, keys: Callable[[], Any], workers: int, finish: _Finish) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more; received {workers}")
        self._rows, self._keys, self._workers, self._finish = rows, keys, workers, finish
        self._open: list[Any] = []

    def __iter__(self) -> Iterator[ImageBatch]:
        # Own generator: DataLoader would draw from torch's global one and change every random number after it.
        loader: DataLoader[Part] = DataLoader(
            self._rows, batch_size=None, sampler=self._keys(), num_workers=self._workers, generator=torch.Generator(),
            collate_fn=Part._make,  # as it is; a lambda could not be sent to a worker
            worker_init_fn=partial(_start_worker, os.getpid()),
        )  # fmt: skip
        with _no_ctrl_c_for_children():
            iterator = iter(loader)
        self._open.append(iterator)
        problems = self._rows.source.problems
        try:
            for batch in self._finish(_sound(iterator, problems, self._rows.strict), problems):
                yield batch
                if iterator not in self._open:  # closed meanwhile: to ask again would wait for ever
                    return
        finally:
            self._end(iterator)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all worker processes; iterating again starts new ones."""
        for iterator in list(self._open):
            self._end(iterator)

    def _end(self, iterator: Any) -> None:
        with suppress(ValueError):
            self._open.remove(iterator)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


@contextmanager
def _no_ctrl_c_for_children() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, not even before their first line; this one sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(reader: int, _: int) -> None:
    """Leave signals to the process that reads, which saves and then ends the workers; without it, end as well."""

    def end_later(*_: object) -> None:  # when the one that reads has taken the last batch and saved
        timer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_later)  # a batch system signals the whole group
    torch.set_num_threads(1)
    threading.Thread(target=_end_after, args=(reader,), daemon=True).start()


def _end_after(reader: int) -> None:
    """End this process when the one that reads its batches is gone, even if it was killed."""
    # Nothing else would: a worker waits to hand over a batch through a pipe that it, or another worker, holds open.
    served = os.getppid() != reader  # its parent is a fork server, which lives as long as its children
    with suppress(ProcessLookupError):
        while served or os.getppid() == reader:
            if served:
                os.kill(reader, 0)  # which only asks whether it is there
            time.sleep(PARENT_SECONDS)
    os._exit(1)


def train_batches(
    source: ImageSource, *, size: int, batch_size: int, seed: int, start_step: int = 0, rank: int = 0,
    world_size: int = 1, workers: int = 0, crop: str = "random", flip: bool = True, strict: bool = False,
) -> Batches:  # fmt: skip
    """Endless batches from ``start_step`` on, a new order each epoch, read ahead by so many ``workers``.

    The images of step s do not depend on ``start_step`` or ``workers``, and ranks share out the rows of one global
    batch of ``batch_size * world_size``. An unreadable image is replaced by the next readable one of the order; if
    ``strict``, or when no image or 1,000 in a row cannot be read, it is a BadImageError while iterating.
    """
    check_name("crop", crop, CROPS)
    _check_counts(source, size=size, batch_size=batch_size, rank=rank, world_size=world_size)
    if start_step < 0:
        raise ValueError(f"start_step must be 0 or more; received {start_step}")
    rows = TrainRows(source, size, batch_size, seed, rank, world_size, crop, flip, strict)
    return Batches(rows, partial(itertools.count, start_step), workers, _train)


def eval_batches(
    source: ImageSource, *, size: int | None, batch_size: int, start: int = 0, limit: int | None = None, rank: int = 0,
    world_size: int = 1, workers: int = 0, strict: bool = False, max_pixels: int | None = None,
    batch_pixels: int | None = None,
) -> Batches:  # fmt: skip
    """Every image once, in order, the centre square; unreadable ones are left out and reported.

    Args:
        size: side of the images; None keeps each image's own size, and a batch then ends where the size changes.
        start: the first image, for what was interrupted.
        limit: at most so many images, evenly spaced over the source, so that a sorted one is still represented.
        rank: this process takes images rank, rank + world_size, ...; maybe none, if there are fewer images than ranks.
        strict: an unreadable image is a BadImageError while iterating, which it is anyway when none can be read.
        max_pixels: of an image, with ``size=None``; a larger one counts as unreadable.
        batch_pixels: of a batch, with ``size=None``: it ends before it has more; a larger image is a batch of its own.
    """
    _check_counts(source, size=size, batch_size=batch_size, rank=rank, world_size=world_size)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or None for all; received {limit}")
    if not 0 <= start < len(source):
        raise ValueError(f"start must be from 0 to {len(source) - 1}; received {start}")
    total = len(source) - start
    count = total if limit is None else min(limit, total)
    indices = (start + np.arange(count, dtype=np.int64) * total // count)[rank::world_size]
    chunk = batch_size if size is not None else 1
    rows = EvalRows(source, size, indices, chunk, strict, max_pixels)
    most = batch_pixels if size is None else None
    finish = partial(_rebatch, batch_size=batch_size, all_mine=world_size == 1, batch_pixels=most)
    return Batches(rows, partial(range, -(-len(indices) // chunk)), workers, finish)


def _sound(parts: Iterator[Part], problems: Problems, strict: bool) -> Iterator[Part]:
    """The parts; an error in one, or a problem of the source that is to be strict, ends them."""
    if strict and problems:
        raise BadImageError(f"cannot read {problems[0][0]}: {problems[0][1]}")
    for part in parts:
        if part.error is not None:
            raise BadImageError(part.error)
        yield part


def _train(parts: Iterator[Part], problems: Problems) -> Iterator[ImageBatch]:
    """Whole batches; what was skipped is reported the first time only."""
    known, seen = list(problems), {name for name, _ in problems}
    for part in parts:
        fresh = {name: reason for name, reason in part.skipped if name not in seen}
        seen |= fresh.keys()
        yield _batch(part.images, part.names, [*known, *fresh.items()])
        known = []


def _rebatch(
    parts: Iterator[Part], problems: Problems, batch_size: int, all_mine: bool, batch_pixels: int | None
) -> Iterator[ImageBatch]:
    """Full batches in spite of skipped images; the last one carries what was skipped after it."""
    images, names, skipped = list[Pixels](), list[str](), list(problems)
    for part in parts:
        skipped += part.skipped
        for image, name in zip(part.images, part.names, strict=True):
            area = image.shape[0] * image.shape[1]
            room = batch_size if batch_pixels is None else min(batch_size, batch_pixels // area)
            if images and (len(images) >= room or images[0].shape != image.shape):
                yield _batch(images, names, skipped)
                images, names, skipped = [], [], []
            images.append(image)
            names.append(name)
    if images:
        yield _batch(images, names, skipped)
    elif all_mine and skipped:
        name, reason = skipped[0]
        raise BadImageError(f"none of the images can be read; the first one, {name}: {reason}")


def _batch(images: list[Pixels], names: list[str], skipped: Problems) -> ImageBatch:
    stacked = np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
    return ImageBatch(torch.from_numpy(stacked), names, skipped)


def _check_counts(source: ImageSource, *, size: int | None, batch_size: int, rank: int, world_size: int) -> None:
    if not len(source):
        raise ValueError("the source has no images")
    for what, value in (("size", size), ("batch_size", batch_size), ("world_size", world_size)):
        if value is not None and value < 1:
            raise ValueError(f"{what} must be at least 1; received {value}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to {world_size - 1}; received {rank}")
