"""The k-means start of the codebook, before the first step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from driftvq.quantizers import Quantizer
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.start import KMeansStart
from driftvq.training.datamodule import RunImages


class CodebookStart(Callback):
    """Feeds latents of training images to the k-means start of a quantizer that has one, until it is done.

    The network does not change meanwhile, so the first optimizer step already sees the codebook in place. All processes
    take part and end with the same codes.

    Args:
        images: of the run.
        most_batches: batches to use at most; a larger codebook goes on with its start during the first steps.
        say: where to tell.
    """

    def __init__(self, images: RunImages, most_batches: int, say: Callable[[str], None]) -> None:
        self.images, self.most_batches, self.say = images, most_batches, say

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        quantizer = module.model.quantizer
        if module.batches > 0 or not pending_starts(quantizer) or self.most_batches == 0:
            return
        used, rows = 0, 0
        with torch.no_grad(), trainer.precision_plugin.forward_context(), learning_held(quantizer):
            for batch in self.images.start_batches():
                batch = module.transfer_batch_to_device(batch, module.device, 0)
                latents = module.model.encoder(module._inputs(batch))
                quantizer(latents)
                used, rows = used + 1, rows + latents.numel() // latents.shape[1]
                if used == self.most_batches or not pending_starts(quantizer):
                    break
        reset_ages_(quantizer)
        rows *= trainer.world_size
        if pending_starts(quantizer):
            self.say(f"k-means start: {rows:,} latents seen before the first step, it goes on during the first steps")
        else:
            self.say(f"k-means start: {quantizer.codebook_size:,} codes placed among {rows:,} latents")


def pending_starts(quantizer: Quantizer | None) -> list[KMeansStart]:
    """The k-means starts in a quantizer that still wait for latents."""
    return [part.start for part in _parts(quantizer) if not part.start.done and not part.freeze_codebook]


@contextmanager
def learning_held(quantizer: Quantizer) -> Iterator[None]:
    """Codebooks keep exactly what their start gives them: from then on they are frozen, until the end of the block."""
    parts = [part for part in _parts(quantizer) if not part.freeze_codebook]

    def hold(part: CodebookQuantizer) -> None:
        if part.start.done:
            part.freeze_codebook = True

    hooks = [part.start.register_forward_hook(lambda *_, part=part: hold(part)) for part in parts]
    try:
        yield
    finally:
        for hook, part in zip(hooks, parts, strict=True):
            hook.remove()
            part.freeze_codebook = False


def _parts(quantizer: Quantizer | None) -> list[CodebookQuantizer]:
    modules = [] if quantizer is None else quantizer.modules()
    return [part for part in modules if isinstance(part, CodebookQuantizer)]


def reset_ages_(quantizer: Quantizer) -> None:
    """Training starts now: no code is old, no step was taken."""
    for part in quantizer.modules():
        if isinstance(part, Quantizer):
            part.step.zero_()
            part.code_age.zero_()
