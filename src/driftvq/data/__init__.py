"""Images: reading them, where they come from, and batches that are a pure function of the seed and the step."""

from driftvq.data.images import BadImageError, fit_image, read_image, to_float, to_uint8, write_image
from driftvq.data.loader import Batches, ImageBatch, eval_batches, train_batches
from driftvq.data.shards import ShardSource
from driftvq.data.sources import ImageSource, open_source

__all__ = [
    "BadImageError", "Batches", "ImageBatch", "ImageSource", "ShardSource", "eval_batches", "fit_image", "open_source",
    "read_image", "to_float", "to_uint8", "train_batches", "write_image",
]  # fmt: skip
