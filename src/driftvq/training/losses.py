"""How far a reconstruction is from its image."""

import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.training.config import TrainConfig


class ReconstructionLoss(nn.Module):
    """``mse(x̂, x) [+ λ · LPIPS(x̂, x)]`` of images in [-1, 1].

    Args:
        lpips_weight: λ; 0 leaves LPIPS out, and needs none of its weights.
    """

    def __init__(self, lpips_weight: float = 0.0) -> None:
        super().__init__()
        self.lpips_weight = lpips_weight
        self.lpips: nn.Module | None = None
        if lpips_weight > 0:
            from driftvq.metrics.lpips import LPIPS

            self.lpips = LPIPS("vgg")

    def forward(self, reconstructions: Tensor, images: Tensor) -> Tensor:
        """A scalar."""
        loss = F.mse_loss(reconstructions, images)
        if self.lpips is None:
            return loss
        # The decoder of some networks may leave [-1, 1] by a little, where LPIPS is not defined.
        distances: Tensor = self.lpips(reconstructions.clamp(-1, 1), images)
        return loss + self.lpips_weight * distances.mean()


def make_reconstruction_loss(config: TrainConfig) -> ReconstructionLoss:
    """The loss that a config asks for."""
    return ReconstructionLoss(config.lpips_weight if config.loss == "mse+lpips" else 0.0)
