"""NS-VQ (the paper, Sec. 3.3): a kernel moves the codes that were not selected.

Shape suffixes: n latents, k codes, d dimensions.
"""

from typing import Any, Literal, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import (
    KERNELS,
    Kernel,
    kernel_codebook_loss,
    kernel_moments,
    nearest,
    seeded_gumbel,
    spread_gradient,
)
from driftvq.quantizers.base import Selection, in_range, one_of
from driftvq.quantizers.codebook import TrainedCodebook, TrainedCodebookOptions
from driftvq.quantizers.ema_vq import winner_moments
from driftvq.quantizers.estimators import Modified
from driftvq.quantizers.follow import Follower, commitment_weight
from driftvq.quantizers.registry import register
from driftvq.quantizers.sync import sum_over_processes

Update = Literal["follow", "online", "gradient", "delta_e"]
UPDATES: tuple[Update, ...] = ("follow", "online", "gradient", "delta_e")

MOVING_BY_THEMSELVES: tuple[Update, ...] = ("follow", "online")
"""Updates that move the codes after each step, without an optimizer."""

ONLINE_KERNEL_ELEMENTS = 2**25
"""Above this many distances the online update estimates its kernel sums from a random part of the batch."""


@register("ns_vq", "paper", "published", "delta_e")
class NSVQ(TrainedCodebook):
    """Non-stationary VQ: a latent moves its own code and, weighted by a kernel, all the others.

    ``Δc_k ∝ w_k (z - c_k)`` for every k, with ``w_win = 1`` and else, e.g., ``w_k = exp(-|z - c_k|² / 2σ²)``  (Eq. 17)

    Four ways to apply it (``update``):

    - ``"follow"``, the default, has nothing to tune. It takes Eq. 12, of which Eq. 17 is the version for one latent:
      the displacement of a whole batch from its codes predicts, by regression, how far every other code has to move.
      See :class:`driftvq.quantizers.follow.Follower`. ``loss = β · mse(z, sg c)``.
    - ``"online"``: after each training step every code moves toward the kernel-weighted mean of the batch,
      ``c_k += ρ · m_k/(m_k + ε) · (s_k/m_k - c_k)`` with mass m_k and sum s_k. No optimizer is involved, so the
      codebook follows the encoder at once, whatever the learning rate. ``loss = β · mse(z, sg c)``.
    - ``"gradient"``: the embedding loss becomes ``|sg z - c_win|² + Σ_{k≠win} sg(w_k) |sg z - c_k|²``.
    - ``"delta_e"`` (Suppl. 10): the decoder's gradient, not the pull toward z, is spread over the other codes.

    Args:
        update: see above.
        kernel: ``"gaussian"``, ``"softmax"`` or ``"rank"``; this and what follows does not concern ``"follow"``.
        bandwidth: 2σ², the softmax temperature, or the decay of the rank kernel.
        relative: multiply the bandwidth by the mean squared distance of the latents to their codes.
        bandwidth_decay: factor applied by :meth:`decay_bandwidth_`.
        decay_every: decay by itself after so many training steps (an epoch, in the paper); 0: leave it to the caller.
        gain: factor of the softmax kernel.
        rate: ρ of the online update.
        mass_floor: ε of the online update: how much mass a code needs to follow at the full rate.
        options: see :class:`driftvq.quantizers.codebook.TrainedCodebook`; here ``kmeans_init`` is on by default, and
            with ``"follow"`` ``commitment_weight`` is :func:`driftvq.quantizers.follow.commitment_weight`.

    Attributes:
        bandwidth: the current bandwidth, part of the state dict.
        scale: mean squared distance of the latest training batch to its codes.
    """

    bandwidth: Tensor
    scale: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        *,
        update: Update = "follow",
        kernel: Kernel = "softmax",
        bandwidth: float = 0.3,
        relative: bool = True,
        bandwidth_decay: float = 1.0,
        decay_every: int = 0,
        gain: float = 1.0,
        rate: float = 0.2,
        mass_floor: float = 0.0,
        **options: Unpack[TrainedCodebookOptions],
    ) -> None:
        self._check_options(update, kernel, relative, options)
        options.setdefault("kmeans_init", True)
        super().__init__(dim, codebook_size, codebook_dim, **options)
        if update == "follow" and "commitment_weight" not in options:
            self.commitment_weight = commitment_weight(self.codebook_dim)
        self.update, self.kernel, self.relative = update, kernel, relative
        self.bandwidth_decay = in_range("bandwidth_decay", bandwidth_decay, 0, 1)
        self.decay_every = int(in_range("decay_every", decay_every, 0, float("inf")))
        self.gain = in_range("gain", gain, 0, float("inf"))
        self.rate = in_range("rate", rate, 0, 1)
        self.mass_floor = in_range("mass_floor", mass_floor, 0, float("inf"))
        if bandwidth <= 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
        self.register_buffer("bandwidth", torch.tensor(float(bandwidth)))
        self.register_buffer("scale", torch.tensor(1.0))
        self.follower = Follower(codebook_size, self.codebook_dim) if update == "follow" else None
        if update in MOVING_BY_THEMSELVES and not self.estimator.trains_codebook:
            self._make_codes_a_buffer_()

    @classmethod
    def paper(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The paper's literal form: Gaussian, 2σ² = 1, ×0.9 per epoch, by gradient, the modified estimator."""
        form = {
            "update": "gradient",
            "kernel": "gaussian",
            "bandwidth": 1.0,
            "relative": False,
            "bandwidth_decay": 0.9,
            "estimator": "modified",
        }
        return cls(dim, codebook_size, codebook_dim, **{**form, **options})

    @classmethod
    def published(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The form of the authors' published code: softmax × 0.01·K in [0, 1], ×0.5 per epoch, d with dimensions."""
        form = {
            "update": "gradient",
            "kernel": "softmax",
            "bandwidth": 1.0,
            "relative": False,
            "bandwidth_decay": 0.5,
            "gain": 0.01 * codebook_size,
            "estimator": Modified(divisor="elements"),
            "kmeans_init": False,
        }
        return cls(dim, codebook_size, codebook_dim, **{**form, **options})

    @classmethod
    def delta_e(cls, dim: int, codebook_size: int, codebook_dim: int | None = None, **options: Any) -> Self:
        """The ΔE variant of Suppl. 10: Gaussian weights carry the decoder's gradient to the other codes."""
        form = {"update": "delta_e", "estimator": "straight_through"}
        return cls.paper(dim, codebook_size, codebook_dim, **{**form, **options})

    @torch.no_grad()
    def decay_bandwidth_(self) -> None:
        """Narrow the kernel by ``bandwidth_decay``; the paper does so after each epoch."""
        self.bandwidth.mul_(self.bandwidth_decay)

    @property
    def effective_bandwidth(self) -> Tensor:
        """The bandwidth the kernel sees: times the latents' own scale when ``relative``."""
        return self.bandwidth * self.scale if self.relative else self.bandwidth

    def readings(self) -> dict[str, float]:
        """The share of the drift that is followed, or the bandwidth."""
        if self.follower is not None:
            return self.follower.readings()
        return {"bandwidth": self.effective_bandwidth.item()}

    def _select(self, z_nd: Tensor, valid_n: Tensor | None) -> Selection:
        selection = super()._select(z_nd, valid_n)
        if self.update == "delta_e" and self.training and not self._frozen:
            spread_nd = spread_gradient(
                z_nd, self.codes.to(z_nd.dtype), self.kernel, self.effective_bandwidth, self.gain
            )
            selection = selection._replace(quantized=selection.quantized + spread_nd)
        return selection

    @torch.no_grad()
    def _learn_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        super()._learn_(z_nd, winners_n, valid_n)
        if self.decay_every > 0:
            due = self.step % self.decay_every == 0
            self.bandwidth.mul_(torch.where(due, self.bandwidth_decay, 1.0))

    def _match(self, z_nd: Tensor, codebook_kd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.update in MOVING_BY_THEMSELVES:
            return nearest(z_nd, codebook_kd), z_nd.new_zeros(())
        if self.update == "delta_e" or self._frozen or not self.training:
            return super()._match(z_nd, codebook_kd, valid_n)
        if self.relative:
            self._measure_scale_(z_nd, nearest(z_nd, codebook_kd), valid_n)
        loss, winners_n = kernel_codebook_loss(
            z_nd, codebook_kd, self.kernel, self.effective_bandwidth, self.gain, valid_n
        )
        return winners_n, loss

    @torch.no_grad()
    def _update_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        if self.follower is not None:
            self._measure_scale_(z_nd, winners_n, valid_n)
            self.codes.copy_(self.follower(self.codes, z_nd, winners_n, valid_n, self.step))
        elif self.update == "online":
            self._update_online_(z_nd, winners_n, valid_n)

    def _update_online_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        self._measure_scale_(z_nd, winners_n, valid_n)
        mass_k, sums_kd = winner_moments(z_nd, winners_n, valid_n, self.codebook_size)
        kernel_mass_k, kernel_sums_kd = self._kernel_moments(z_nd, valid_n)
        mass_k, sums_kd = mass_k + kernel_mass_k, sums_kd + kernel_sums_kd
        tiny = torch.finfo(mass_k.dtype).tiny
        step_k = self.rate * mass_k / (mass_k + self.mass_floor).clamp(min=tiny)
        mean_kd = sums_kd / mass_k.clamp(min=tiny)[:, None]
        self.codes.add_(step_k[:, None] * (mean_kd - self.codes))

    def _kernel_moments(self, z_nd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """Kernel mass and sum of each code as a non-winner, over all processes."""
        weight_n1 = z_nd.new_ones(len(z_nd), 1) if valid_n is None else valid_n[:, None].to(z_nd.dtype)
        stride = -(-len(z_nd) * self.codebook_size // ONLINE_KERNEL_ELEMENTS)
        if stride > 1:
            part = seeded_gumbel(len(z_nd), self.step).topk(len(z_nd) // stride).indices
            z_nd, weight_n1 = z_nd[part], weight_n1[part] * (len(z_nd) / len(part))
        _, mass_k, sums_kd, _ = kernel_moments(
            z_nd, self.codes.to(z_nd.dtype), self.kernel, self.effective_bandwidth, self.gain, weight_n1
        )
        mass_k, sums_kd = sum_over_processes(mass_k, sums_kd)
        return mass_k, sums_kd

    @torch.no_grad()
    def _measure_scale_(self, z_nd: Tensor, winners_n: Tensor, valid_n: Tensor | None) -> None:
        sq_dist_n = (z_nd - F.embedding(winners_n, self.codes)).square().sum(dim=1)
        # Distances below the rounding error of the latents say nothing.
        info = torch.finfo(z_nd.dtype)
        sq_dist_n = sq_dist_n.clamp(min=info.tiny**0.5) + z_nd.square().sum(dim=1) * info.eps
        weight_n = torch.ones_like(sq_dist_n) if valid_n is None else valid_n.to(sq_dist_n.dtype)
        total, count = sum_over_processes((sq_dist_n * weight_n).sum(), weight_n.sum())
        self.scale.copy_(torch.where(count > 0, total / count.clamp(min=1), self.scale))

    @torch.no_grad()
    def _set_codebook_(self, codebook_kd: Tensor) -> None:
        super()._set_codebook_(codebook_kd)
        if self.follower is not None:
            self.follower.reset_()

    def _busyness(self) -> Tensor:
        return super()._busyness() if self.follower is None else self.follower.mass

    def _make_codes_a_buffer_(self) -> None:
        """No optimizer and no sharding strategy should touch codes that move by themselves."""
        codes_kd = self.codes.detach()
        del self.codes
        self.register_buffer("codes", codes_kd)

    def _apply_freeze_(self) -> None:
        if isinstance(self.codes, nn.Parameter):
            super()._apply_freeze_()

    @staticmethod
    def _check_options(update: str, kernel: str, relative: bool, options: TrainedCodebookOptions) -> None:
        one_of("update", update, UPDATES)
        one_of("kernel", kernel, KERNELS)
        if relative and kernel == "rank":
            raise ValueError("relative=True needs a kernel of distances, got kernel='rank', which knows no scale")
        if update in MOVING_BY_THEMSELVES and options.get("orthogonal_weight", 0) > 0:
            raise ValueError(f"orthogonal_weight needs a codebook trained by gradient, got update={update!r}")
