"""Batches and the worker processes that read them."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from driftvq.data.rows import Part


class ImageBatch(NamedTuple):
    """uint8 images ``(b, 3, h, w)``, their names, and what could not be read, each once, as (name, reason)."""

    images: Tensor
    names: list[str]
    skipped: list[tuple[str, str]]


class Batches:
    """Batches that can be iterated over again and again; ``close`` ends the worker processes."""

    def __init__(
        self, parts: Dataset[Part], keys: Iterable[int], workers: int, finish: Callable[[Iterator[Part]], Any]
    ) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more; received {workers}")
        self._parts, self._keys, self._workers, self._finish = parts, keys, workers, finish
        self._open: list[Any] = []

    def __iter__(self) -> Iterator[ImageBatch]:
        # Own generator: DataLoader would draw from torch's global one and change every random number after it.
        loader: DataLoader[Part] = DataLoader(
            self._parts,
            batch_size=None,
            sampler=self._keys,
            num_workers=self._workers,
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),
        )
        with _no_ctrl_c_for_children():
            iterator = iter(loader)
        self._open.append(iterator)
        try:
            for batch in self._finish(iterator):
                yield batch
                if iterator not in self._open:  # closed meanwhile: to ask again would wait for ever
                    return
        finally:
            self._end(iterator)

    def __enter__(self) -> "Batches":
        return self

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


def _unchanged(part: Any) -> Any:
    return part


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


def _start_worker(_: int) -> None:
    """Leave Ctrl-C to the main process, which saves and then ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
