"""The images of a run: to train on, to validate on, and to start the codebook with."""

from typing import Any

from driftvq.data import Batches, ImageBatch, ImageSource, eval_batches, open_source, train_batches
from driftvq.training.config import TrainConfig

START_SEED = 2**31
"""Added to the seed for the batches of the k-means start, so that it sees an order of its own."""


class RunImages:
    """What a run reads; each process its own share, set once :attr:`rank` and :attr:`world_size` are known.

    The training batches are endless and a pure function of the seed and of how many came before, so a resumed run asks
    for those after its checkpoint, whatever the old process had read ahead.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.rank, self.world_size = 0, 1
        options: dict[str, Any] = {"val_share": config.val_share, "seed": config.seed, "size": config.size}
        self.train_source: ImageSource = open_source(config.data, "train", **options)
        if config.val_data is None:
            self.val_source: ImageSource = open_source(config.data, "val", **options)
        else:
            self.val_source = open_source(config.val_data, "all", **options)

    def train_batches(self, start: int) -> Batches:
        """From batch ``start`` on, counted from 0."""
        return self._training_batches(self.config.seed, start, self.config.workers)

    def start_batches(self) -> Batches:
        """Training images in another order than that of training."""
        return self._training_batches(self.config.seed + START_SEED, 0, 0)

    def val_batches(self) -> Batches:
        """The same images each time; a process may have fewer batches than another, or none."""
        return eval_batches(
            self.val_source,
            size=self.config.size,
            batch_size=self.config.batch_size,
            limit=self.config.val_images or None,
            strict=self.config.strict,
            rank=self.rank,
            world_size=self.world_size,
        )

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
            rank=self.rank,
            world_size=self.world_size,
        )
