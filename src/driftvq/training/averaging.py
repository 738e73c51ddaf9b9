"""The moving average of the weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class WeightAverage(AveragedModel):
    """``average ← γ average + (1-γ) weights`` of a model's floating-point parameters and buffers, as :attr:`module`.

    For the first steps γ is at most ``(1 + n) / (10 + n)``, so that the average soon forgets the random start.

    Args:
        model: whose weights.
        decay: γ.
    """

    module: Any  # what the model is

    def __init__(self, model: nn.Module, decay: float) -> None:
        def average(kept: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
            share = 1 - min(decay, (1 + int(updates)) / (10 + int(updates)))
            for mean, value in zip(kept, weights, strict=True):
                mean.lerp_(value, share) if mean.is_floating_point() else mean.copy_(value)

        super().__init__(model, multi_avg_fn=average, use_buffers=True)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Take one step toward the weights of the model."""
        mine, theirs = self.module.state_dict(), model.state_dict()
        if any(value.shape != theirs[name].shape for name, value in mine.items()):
            self.module.load_state_dict(theirs)  # the buffers of a k-means start change their size
        super().update_parameters(model)
