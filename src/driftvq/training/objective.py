"""What a training step minimises: squared error, LPIPS, the quantizer's loss, and the adversarial term of VQGAN."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.data import to_float
from driftvq.metrics.lpips import LPIPS
from driftvq.models import VQVAE
from driftvq.quantizers.distributed import from_first_process, sum_over_processes, world_size
from driftvq.training.config import TrainConfig
from driftvq.training.fabric import memory_layout

Device = torch.device | str


class ReconstructionLoss(nn.Module):
    """``mse(x̂, x) [+ λ · LPIPS(x̂, x)]`` of images in [-1, 1]; λ = 0 needs none of LPIPS's weights."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.lpips_weight = config.lpips_weight if config.loss == "mse+lpips" else 0.0
        self.lpips = LPIPS("vgg") if self.lpips_weight > 0 else None

    def forward(self, reconstructions: Tensor, images: Tensor) -> Tensor:
        loss = F.mse_loss(reconstructions, images)
        if self.lpips is None:
            return loss
        # The decoder of some networks may leave [-1, 1] by a little, where LPIPS is not defined.
        distances: Tensor = self.lpips(reconstructions.clamp(-1, 1), images)
        return loss + self.lpips_weight * distances.mean()


class PatchDiscriminator(nn.Sequential):
    """Scores every patch of an image: high for real, low for reconstructed.

    A cut-down PatchGAN (Isola et al., 2017). Group instead of batch normalisation: scores of an image do not depend on
    the batch, and there is nothing to synchronise between processes.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__(
            nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.GroupNorm(8, 2 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=1, padding=1, bias=False),
            nn.GroupNorm(8, 4 * width), nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 4, stride=1, padding=1),
        )  # fmt: skip
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)


def hinge_loss(real_scores: Tensor, fake_scores: Tensor) -> Tensor:
    """What the discriminator minimises: ``½ (mean max(0, 1 - real) + mean max(0, 1 + fake))``."""
    return 0.5 * (F.relu(1 - real_scores).mean() + F.relu(1 + fake_scores).mean())


def adaptive_weight(reconstruction: Tensor, adversarial: Tensor, last_layer: Tensor) -> Tensor:
    """``|∂ reconstruction| / (|∂ adversarial| + 1e-4)`` at the decoder's last layer: both terms pull equally hard."""
    (pull,) = torch.autograd.grad(reconstruction, last_layer, retain_graph=True)
    (push,) = torch.autograd.grad(adversarial, last_layer, retain_graph=True)
    weight: Tensor = (pull.norm() / (push.norm() + 1e-4)).clamp(0, 1e4)
    return weight.detach()


class Adversary:
    """The discriminator with its own optimizer.

    It is not part of the trained module: no strategy shards or wraps it, and it averages its gradients over the
    processes by itself. ``weight`` is that of the adversarial term, on top of the adaptive one; from step ``start``
    on, counted from 1, the discriminator learns and is listened to.
    """

    def __init__(
        self, weight: float, start: int, learning_rate: float, betas: tuple[float, float], device: Device = "cpu"
    ) -> None:
        self.weight, self.start = weight, start
        self.discriminator = PatchDiscriminator().to(device)
        with torch.no_grad():
            for parameter in self.discriminator.parameters():
                parameter.copy_(from_first_process(parameter))
        self.optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=learning_rate, betas=betas)

    def active(self, step: int) -> bool:
        return step >= self.start

    def generator_loss(self, reconstructions: Tensor, reconstruction: Tensor, last_layer: Tensor) -> Tensor:
        """The term of the generator: ``weight · adaptive · -mean(scores)``."""
        with torch.autocast(reconstructions.device.type, enabled=False):
            adversarial: Tensor = -self.discriminator(reconstructions.float()).mean()
        return self.weight * adaptive_weight(reconstruction, adversarial, last_layer) * adversarial

    def learn_(self, images: Tensor, reconstructions: Tensor, parts: int = 1) -> Tensor:
        """One step of the discriminator, in the memory that one of so many parts takes; its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for some, rebuilt in zip(images.chunk(parts), reconstructions.detach().chunk(parts), strict=True):
            with torch.autocast(images.device.type, enabled=False), torch.enable_grad():
                real = self.discriminator(some.float())
                loss = hinge_loss(real, self.discriminator(rebuilt.float())) * (len(some) / len(images))
            loss.backward()
            losses.append(loss.detach())
        if world_size() > 1:
            gradients = [parameter.grad for parameter in self.discriminator.parameters() if parameter.grad is not None]
            for gradient, total in zip(gradients, sum_over_processes(*gradients), strict=True):
                gradient.copy_(total / world_size())
        self.optimizer.step()
        return torch.stack(losses).sum()

    def state_dict(self) -> dict[str, Any]:
        return {"discriminator": self.discriminator.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.discriminator.load_state_dict(state["discriminator"])
        self.optimizer.load_state_dict(state["optimizer"])


class StepOutput(NamedTuple):
    """What a forward pass gives: losses, images in [-1, 1] and their reconstructions, and the selected codes."""

    loss: Tensor
    reconstruction: Tensor
    quantizer: Tensor
    images: Tensor
    rebuilt: Tensor
    indices: Tensor | None


class Objective(nn.Module):
    """``loss = reconstruction + quantizer's loss [+ adversarial term]``, in one module with the model.

    So the forward pass that a strategy wraps and a precision applies to ends with the loss. It takes pixels, which no
    precision can round.
    """

    def __init__(
        self, model: VQVAE, config: TrainConfig, reconstruction: ReconstructionLoss, adversary: Adversary | None = None
    ) -> None:
        super().__init__()
        self.model, self.layout = model, memory_layout(config)
        # In a tuple they are not part of the module: no strategy shards them and no precision converts them.
        self.judges = reconstruction, adversary

    def inputs(self, pixels: Tensor) -> Tensor:
        """Pixels as the model takes them."""
        return to_float(pixels).contiguous(memory_format=self.layout)

    def forward(self, pixels: Tensor, adversarial: bool = False, quantize: bool = True) -> StepOutput:
        """The loss of uint8 images ``b 3 h w``."""
        reconstruction_loss, adversary = self.judges
        images = self.inputs(pixels)
        output = self.model(images, quantize)
        rebuilt = output.images.to(torch.promote_types(output.images.dtype, torch.float32))
        reconstruction = reconstruction_loss(rebuilt, images.to(rebuilt.dtype))
        loss = reconstruction + output.loss
        if adversarial and adversary is not None:
            last_weight = [p for name, p in self.model.decoder.named_parameters() if name.endswith("weight")][-1]
            loss = loss + adversary.generator_loss(rebuilt, reconstruction, last_weight)
        return StepOutput(loss, reconstruction, output.loss, images, rebuilt, output.indices)
