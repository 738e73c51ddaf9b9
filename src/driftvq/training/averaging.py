"""The moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """``average ← γ average + (1-γ) weights`` of a model's floating-point parameters and buffers.

    For the first steps γ is at most ``(1 + n) / (10 + n)``, so that the average soon forgets the random start.

    Args:
        model: whose weights.
        decay: γ.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.average = {name: value.detach().clone() for name, value in _weights(model).items()}

    @torch.no_grad()
    def update_(self, model: nn.Module) -> None:
        """Take one step toward the weights of the model."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in _weights(model).items():
            kept = self.average.get(name)
            if kept is None or kept.shape != value.shape or kept.device != value.device:
                self.average[name] = value.detach().clone()  # the buffers of a k-means start change their size
            else:
                kept.lerp_(value, 1 - decay)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """The model has the averaged weights for a while; its own come back, bit for bit."""
        own = self.put_in_(model)
        try:
            yield
        finally:
            put_back_(model, own)

    @torch.no_grad()
    def put_in_(self, model: nn.Module) -> dict[str, Tensor]:
        """Give the model the averaged weights; returns its own, for :func:`put_back_`."""
        own = {}
        for name, value in _weights(model).items():
            kept = self.average[name]
            if kept.shape == value.shape:
                own[name] = value.detach().clone()
                value.copy_(kept)
        return own

    def state_dict(self) -> dict[str, object]:
        """The average and how often it was updated."""
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from :meth:`state_dict`."""
        average, updates = state["average"], state["updates"]
        assert isinstance(average, dict)
        assert isinstance(updates, int)
        device = next(iter(self.average.values())).device
        self.average = {name: value.to(device) for name, value in average.items()}
        self.updates = updates

    def to_(self, device: torch.device) -> None:
        """Move to a device."""
        self.average = {name: value.to(device) for name, value in self.average.items()}


@torch.no_grad()
def put_back_(model: nn.Module, own: dict[str, Tensor]) -> None:
    """Give a model its own weights again."""
    weights = _weights(model)
    for name, value in own.items():
        weights[name].copy_(value)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if value.is_floating_point()}
