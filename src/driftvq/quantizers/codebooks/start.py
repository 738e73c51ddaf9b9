"""The k-means start of a codebook, over as many batches as it needs."""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import Metric, kmeans
from driftvq.quantizers.distributed import from_first_process, gather_rows, world_size
from driftvq.quantizers.finite import finite_rows

GATHERED, USED = 4, 2
"""Latents per code that are gathered, and how many of them k-means uses at least: the latest, since the encoder moves
on, and all of the last batch."""


class KMeansStart(nn.Module):
    """Gathers the first latents of training, from all processes, until k-means can place every code.

    While it gathers, the codes *are* the latest latents, so the batch at hand is quantised almost without error. What
    was gathered, ``pending``, is in the state dict, so that a run that is interrupted here continues here; it is no
    buffer, since whoever averages, broadcasts or writes buffers in place needs them to keep their shapes.
    """

    finished: Tensor  # above 0 where nothing is left to gather; a number, as an average of models takes no boolean

    def __init__(
        self, codebook_size: int, dim: int, iterations: int = 10, metric: Metric = "l2", done: bool = False
    ) -> None:
        super().__init__()
        self.codebook_size, self.iterations, self.metric = codebook_size, iterations, metric
        self.needed = codebook_size * GATHERED
        self.done = done  # mirrors the buffer in Python, where a compiled graph can branch on it
        self.register_buffer("finished", torch.tensor(float(done)))
        self.pending = torch.zeros(0, dim, device="cpu")  # no loader would bring it to life if it were on no device
        self.latest: tuple[Tensor, Tensor] | None = None  # of the latest step, for a backward pass that repeats it
        self._enter()

    def _enter(self) -> None:
        self._number = next(_NUMBERS)
        _STARTS[self._number] = self

    @torch.no_grad()
    def forward(self, z_nd: Tensor, valid_n: Tensor | None) -> tuple[Tensor, Tensor]:
        """The codebook to use from now on ``(k, d)``, and, as a boolean scalar, whether there is one.

        There is none while no process has seen a latent, nor where it was loaded. ``torch.compile`` sees one operator.
        """
        codes_kd, made = _start_op(z_nd, valid_n, self.finished, self._number)
        return codes_kd, made

    def gather_(self, z_nd: Tensor, valid_n: Tensor | None) -> Tensor | None:
        """Take in a batch; :meth:`forward` without the operator around it."""
        latents = z_nd if valid_n is None else z_nd[valid_n]
        latents = latents[finite_rows(latents)]
        if self.metric == "cosine":
            latents = F.normalize(latents, dim=1)
        latents = gather_rows(latents)
        missing = self.needed - len(self.pending)
        if len(latents) > missing:  # from all over the batch, and not from its first images
            latents = latents[torch.arange(missing, device=latents.device) * len(latents) // missing]
        fresh = len(latents)
        if len(self.pending):  # where they are alike already, a device need know no copy inside an operator
            near = self.pending.device == latents.device and self.pending.dtype == latents.dtype
            latents = torch.cat([self.pending if near else self.pending.to(latents), latents])
        self.pending = latents
        if len(self.pending) == 0:
            return None
        if len(self.pending) < self.needed:
            latest = self.pending[-self.codebook_size :]
            return latest[torch.arange(self.codebook_size, device=latest.device) % len(latest)]
        latest, generator = self.pending[-max(USED * self.codebook_size, fresh) :], torch.Generator().manual_seed(0)
        result = kmeans(latest, self.codebook_size, self.iterations, self.metric, generator)
        self.finish_()
        return from_first_process(result.codebook)

    def train(self, mode: bool = True) -> "KMeansStart":
        """Whoever loads a model calls this or ``eval`` afterwards: a graph compiled then knows what was loaded."""
        if not self.finished.is_meta:
            self.waits()
        return super().train(mode)

    def waits(self) -> bool:
        """Whether latents are still to be gathered; a loader may have written the buffer alone."""
        if not torch.compiler.is_compiling():  # a graph leaves it to the operator to find out
            self.done = self.done or bool(self.finished > 0)
            if self.done and torch._C._current_graph_task_id() == -1:
                self.latest = None  # no backward pass asks for it any more
        return not self.done

    def finish_(self) -> None:
        """Nothing more to gather."""
        self.done = True
        self.finished.fill_(1)
        self.pending = self.pending[:0].clone()

    def agree_(self) -> None:
        """All processes take over what the first has gathered."""
        if world_size() == 1:
            return
        rows = int(from_first_process(torch.tensor(len(self.pending), device=self.finished.device)))
        if len(self.pending) != rows:
            self.pending = self.pending.new_zeros(rows, self.pending.shape[1])
        self.pending = from_first_process(self.pending.to(self.finished.device))

    @property
    def training_state(self) -> tuple[str, ...]:
        """Names in the state dict that say how training goes on and change nothing in evaluation."""
        return ("finished", "pending") if len(self.pending) else ("finished",)

    def _apply(self, fn: Any, recurse: bool = True) -> "KMeansStart":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.pending = fn(self.pending)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if len(self.pending):
            destination[f"{prefix}pending"] = self.pending

    def _load_from_state_dict(  # type: ignore[no-untyped-def]
        self, state_dict, prefix, metadata, strict, missing, unexpected, errors
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        if not {f"{prefix}finished", f"{prefix}pending"} & state_dict.keys():
            return
        self.done = not self.finished.is_meta and bool(self.finished > 0)
        name, dim = f"{prefix}pending", self.pending.shape[1]
        found = state_dict.get(name, self.pending[:0])
        if name in unexpected:
            unexpected.remove(name)
        if found.ndim != 2 or found.shape[1] != dim or len(found) > self.needed:
            errors.append(f"{name} must be at most {self.needed} latents of {dim}, got {tuple(found.shape)}")
        else:
            self.pending = found.to(self.finished.device, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "latest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._enter()  # a copy is another start


_NUMBERS = count()
_STARTS: WeakValueDictionary[int, KMeansStart] = WeakValueDictionary()  # by number, which an operator can take


@torch.library.custom_op("driftvq::start_codes", mutates_args=("finished",))
def _start_op(z_nd: Tensor, valid_n: Tensor | None, finished: Tensor, number: int) -> tuple[Tensor, Tensor]:
    start = _STARTS[number]
    if torch._C._current_graph_task_id() != -1 and start.latest is not None:
        return start.latest[0].clone(), start.latest[1].clone()  # a backward pass asks for this step again
    if finished > 0:
        start.finish_()
        codes_kd = None
    else:
        codes_kd = start.gather_(z_nd, valid_n)
        finished.fill_(start.done)
    made = z_nd.new_full((), codes_kd is not None, dtype=torch.bool)
    start.latest = (z_nd.new_zeros(start.codebook_size, z_nd.shape[1]) if codes_kd is None else codes_kd, made)
    return start.latest[0].clone(), made.clone()


@_start_op.register_fake
def _(z_nd: Tensor, valid_n: Tensor | None, finished: Tensor, number: int) -> tuple[Tensor, Tensor]:
    codes_kd = z_nd.new_empty(_STARTS[number].codebook_size, z_nd.shape[1])
    return codes_kd, torch.empty((), dtype=torch.bool, device=z_nd.device)
