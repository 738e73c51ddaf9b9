"""The k-means start of a codebook, over as many batches as it needs."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import Metric, kmeans
from driftvq.quantizers.distributed import from_first_process, gather_rows, row_counts


class KMeansStart(nn.Module):
    """Gathers the first latents of training, from all processes, until k-means can place every code.

    While it gathers, the codes *are* the latest latents, so the batch at hand is quantised almost without error. What
    was gathered is part of the state dict: a run that is interrupted here continues here.

    Args:
        codebook_size: K.
        dim: dimension of a code.
        iterations: Lloyd iterations at most.
        samples_per_code: latents to gather per code.
        metric: ``"l2"`` or ``"cosine"``.
        done: nothing to do.
    """

    training_state: ClassVar[tuple[str, ...]] = ("pending", "finished")
    pending: Tensor
    finished: Tensor

    def __init__(
        self,
        codebook_size: int,
        dim: int,
        iterations: int = 10,
        samples_per_code: int = 2,
        metric: Metric = "l2",
        done: bool = False,
    ) -> None:
        super().__init__()
        self.codebook_size, self.iterations, self.metric = codebook_size, iterations, metric
        self.needed = codebook_size * samples_per_code
        self.done = done
        """Mirrors ``finished`` in Python, where a compiled graph can branch on it."""
        self.register_buffer("finished", torch.tensor(done))
        self.register_buffer("pending", torch.zeros(0, dim))

    @torch.no_grad()
    def forward(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor | None:
        """The codebook to use from now on ``(k, d)``, or None when no process has seen a latent yet."""
        latents = z_nd if valid_n is None else z_nd[valid_n]
        if self.metric == "cosine":
            latents = F.normalize(latents, dim=1)
        latents = gather_rows(latents, row_counts(latents)).to(self.pending.dtype)
        self.pending = torch.cat([self.pending, latents])[: self.needed]
        if len(self.pending) == 0:
            return None
        if len(self.pending) < self.needed:
            latest = self.pending[-self.codebook_size :]
            return latest[torch.arange(self.codebook_size, device=latest.device) % len(latest)]
        generator = torch.Generator().manual_seed(0)
        result = kmeans(self.pending, self.codebook_size, self.iterations, self.metric, generator)
        self.finish_()
        return from_first_process(result.codebook)

    def waits(self) -> bool:
        """Whether latents are still to be gathered; a loader may have written the buffer alone."""
        if not self.done:
            self.done = bool(self.finished)
        return not self.done

    def finish_(self) -> None:
        """Nothing more to gather."""
        self.done = True
        self.finished.fill_(True)
        self.pending = self.pending[:0].clone()

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):  # type: ignore[no-untyped-def]
        if f"{prefix}pending" in state_dict:
            self.pending = torch.empty_like(state_dict[f"{prefix}pending"], device=self.pending.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.done = bool(self.finished)
