"""The images of a run, for Lightning."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from driftvq.data import Batches, ImageBatch, ImageSource, eval_batches, open_source, train_batches
from driftvq.training.config import TrainConfig

START_SEED = 2**31
"""Added to the seed for the batches of the k-means start, so that it sees an order of its own."""


class RunImages(LightningDataModule):
    """Training batches from where the module stands, validation batches, and batches for the k-means start.

    The training batches are endless and a pure function of the seed and of how many came before, so a resumed run asks
    for those after its checkpoint, whatever the old process had read ahead.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        options: dict[str, Any] = {"val_share": config.val_share, "seed": config.seed, "size": config.size}
        self.train_source: ImageSource = open_source(config.data, "train", **options)
        if config.val_data is None:
            self.val_source: ImageSource = open_source(config.data, "val", **options)
        else:
            self.val_source = open_source(config.val_data, "all", **options)

    def train_dataloader(self) -> Batches:
        """From the first batch that the module has not seen."""
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        return self._training_batches(self.config.seed, module.batches, self.config.workers)

    def val_dataloader(self) -> "EvenBatches":
        """The same images each time."""
        size, batch_size, share = self.config.size, self.config.batch_size, self._share()
        limit = self.config.val_images or None
        batches = eval_batches(
            self.val_source, size=size, batch_size=batch_size, limit=limit, strict=self.config.strict, **share
        )
        images = min(limit or len(self.val_source), len(self.val_source))
        return EvenBatches(batches, -(-images // (share.get("world_size", 1) * batch_size)), size)

    def start_batches(self) -> Iterator[ImageBatch]:
        """Training images in another order than that of training."""
        with self._training_batches(self.config.seed + START_SEED, 0, 0) as batches:
            yield from batches

    def first_val_images(self, count: int) -> ImageBatch:
        """A few validation images, the same in each process and each run."""
        with eval_batches(self.val_source, size=self.config.size, batch_size=count, limit=count) as batches:
            return next(iter(batches))

    def _training_batches(self, seed: int, start: int, workers: int) -> Batches:
        config = self.config
        return train_batches(
            self.train_source,
            size=config.size,
            batch_size=config.batch_size,
            seed=seed,
            start_step=start,
            workers=workers,
            crop=config.crop,
            flip=config.flip,
            strict=config.strict,
            **self._share(),
        )

    def _share(self) -> dict[str, int]:
        trainer = self.trainer
        return {} if trainer is None else {"rank": trainer.global_rank, "world_size": trainer.world_size}


class EvenBatches:
    """Batches, with empty ones at the end up to a number: all processes must come to a validation step equally often.

    Args:
        batches: of this process.
        count: how many there shall be.
        size: side of the images.
    """

    def __init__(self, batches: Batches, count: int, size: int) -> None:
        self.batches, self.count, self.size = batches, count, size

    def __iter__(self) -> Iterator[ImageBatch]:
        missing = self.count
        for batch in self.batches:
            yield batch
            missing -= 1
        for _ in range(missing):
            yield ImageBatch(torch.empty(0, 3, self.size, self.size, dtype=torch.uint8), [], [])
