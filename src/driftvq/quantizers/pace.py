"""How far a codebook goes along when the network that moves it is trained.

Shape suffixes: k codes, d dimensions.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from driftvq.quantizers.growth import Rule, between
from driftvq.quantizers.sync import sum_over_processes, world_size

STEP_SHARE = 0.25
"""Codes move by at most this share of the latents' step. A codebook that wanders looks to the follower like latents
that move: with a share near one, this would allow it to wander on for ever."""


class Pace(nn.Module):
    """Moves a codebook by what an optimizer has changed in a transform, and by less than the latents have moved.

    ``C ← C + g · s · (P_φ(C̄) - P_φ⁻(C̄))``  with  ``C̄ = (C - m) / s``

    g is 1, or less if the codes would move by more than a quarter of the latents' step.

    φ⁻ is φ before the optimizer's step, m the mean code and s the root mean square of ``C - m``; steps are root mean
    squares. The transform sees and gives standardised codes, so its training does not depend on the scale of the
    latents; and whatever the optimizer and its learning rate, the codes cannot outrun the latents, so the encoder never
    runs after its codebook.

    Args:
        codebook_size: K.
        dim: dimension of a code.

    Attributes:
        rest: ``P_φ(C̄)`` at the end of the latest training step, ``(k, d)``.
        movement: how far φ moved the codes, and how far the latents moved, in the latest training step, ``(2,)``.
    """

    rows_per_code: ClassVar[dict[str, Rule]] = {"rest": between}
    rest: Tensor
    movement: Tensor

    def __init__(self, codebook_size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rest", torch.zeros(codebook_size, dim))
        self.register_buffer("movement", torch.zeros(2))

    def forward(self, codebook_kd: Tensor, transform: nn.Module, latents_step: Tensor) -> Tensor:
        """The codes after φ was trained ``(k, d)``, with the gradient of ``C + s · P_φ(C̄)``: g only sets the value."""
        standard_kd, scale = standardized(codebook_kd)
        step_kd: Tensor = (transform(standard_kd) - self.rest) * scale
        taken_kd = step_kd.detach()
        asked = taken_kd.square().sum(dim=1).mean().sqrt()
        gate = (STEP_SHARE * latents_step / asked.clamp(min=torch.finfo(asked.dtype).tiny)).clamp(max=1)
        return codebook_kd + gate.to(taken_kd.dtype) * taken_kd + (step_kd - taken_kd)

    @torch.no_grad()
    def record_(self, before_kd: Tensor, after_kd: Tensor, latents_step: Tensor) -> None:
        """Remember how far codes and latents went in a training step."""
        codes_step = (after_kd - before_kd).square().sum(dim=1).mean().sqrt()
        self.movement.copy_(torch.stack([codes_step.to(latents_step.dtype), latents_step]))

    def readings(self) -> dict[str, float]:
        """For logs: root mean square steps of the codes by φ, and of the latents."""
        codes, latents = self.movement.tolist()
        return {"codes_step": codes, "latents_step": latents}

    @torch.no_grad()
    def settle_(self, codebook_kd: Tensor, transform: nn.Module) -> None:
        """These are the codes that belong to the present φ."""
        self.rest.copy_(transform(standardized(codebook_kd)[0]))


def standardized(codebook_kd: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of mean 0 and root mean square 1 ``(k, d)``, and the scale they were divided by."""
    centred_kd = codebook_kd - codebook_kd.mean(dim=0)
    scale = centred_kd.square().mean().sqrt()
    scale = torch.where(scale > torch.finfo(scale.dtype).tiny ** 0.5, scale, 1)
    return centred_kd / scale, scale


def scale_free(loss: Tensor, codebook_kd: Tensor) -> Tensor:
    """A squared distance with the gradient of ``loss / sg(loss + s²)``, which is the same for latents of any scale."""
    scale = standardized(codebook_kd)[1]
    (total,) = sum_over_processes(loss.detach())
    return torch.lerp(loss.detach(), loss, 1 / (total / world_size() + scale.square()))
