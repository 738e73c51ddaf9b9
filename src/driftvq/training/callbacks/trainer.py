"""What the callbacks ask of a trainer."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch import LightningModule, Trainer
from torch.distributed.fsdp import FullyShardedDataParallel


def steps_done(trainer: Trainer, module: LightningModule) -> int:
    """Training steps so far; a module may count them itself, as ``steps_done``."""
    own = getattr(module, "steps_done", None)
    return trainer.global_step if own is None else int(own)


@contextmanager
def whole_weights(trainer: Trainer) -> Iterator[None]:
    """Inside, parts of the model can be called by themselves, even if the strategy spreads weights over processes.

    All processes have to enter together.
    """
    if isinstance(trainer.model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(trainer.model, writeback=False):
            yield
    else:
        yield
