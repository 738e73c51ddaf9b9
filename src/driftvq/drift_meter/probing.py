"""What a drift meter sees of a model, without leaving a trace: n latents of a probe, k codes, in d dimensions."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from driftvq.functional import Metric, nearest
from driftvq.quantizers.codebook import CodebookQuantizer
from driftvq.quantizers.codebooks.start import KMeansStart
from driftvq.quantizers.composite import CompositeQuantizer
from driftvq.quantizers.grouped_vq import GroupedVQ
from driftvq.quantizers.quantizer import Quantizer
from driftvq.quantizers.steps import project


class Snapshot(NamedTuple):
    """The latents of the probe ``(n, d)``, their codes' indices ``(n,)`` and the codebook ``(k, d)``, at one moment."""

    latents: Tensor
    winners: Tensor
    codebook: Tensor | None  # None where no code can move
    codebook_size: int
    by_distance: bool  # a latent's code is the nearest one

    def to(self, device: torch.device | str) -> "Snapshot":
        codebook = None if self.codebook is None else self.codebook.to(device)
        return self._replace(latents=self.latents.to(device), winners=self.winners.to(device), codebook=codebook)

    def is_comparable(self, other: "Snapshot") -> bool:
        """Whether both show the same probe and as many codes."""
        return [getattr(x, "shape", x) for x in self] == [getattr(x, "shape", x) for x in other]


@contextmanager
def undisturbed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards the modes and the random generators are what they were."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    devices = {p.device for module in modules for p in module.parameters() if p.device.type == "cuda"}
    try:
        for module in modules:
            module.eval()
        with torch.random.fork_rng(devices=sorted(d.index for d in devices)), torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def modules_of(function: Any) -> list[nn.Module]:
    """The modules that a callable is, belongs to, or mentions, so that it can be run in evaluation mode."""
    if isinstance(function, nn.Module):
        return [function]
    if isinstance(owner := getattr(function, "__self__", None), nn.Module):
        return [owner]
    try:
        names = inspect.getclosurevars(function)
    except TypeError:  # not a Python function
        return []
    return [v for v in (*names.nonlocals.values(), *names.globals.values()) if isinstance(v, nn.Module)]


def rows(latents: Tensor, dim: int, channel_first: bool | None) -> Tensor:
    """Latents ``(…, d)`` or ``(b, d, …)`` as ``(n, d)``; the layout is told by which axis has d entries."""
    shape = tuple(latents.shape)
    if latents.ndim < 2 or dim not in (shape[1], shape[-1]):
        hint = "if the quantizer projects before it compares, the encode function has to project too"
        wanted = f"latents of shape (…, {dim}) or (b, {dim}, …), got {shape}"
        raise ValueError(f"the encoder must give {wanted}; {dim} is the dimension of the codes: {hint}")
    if channel_first is None:
        if latents.ndim > 2 and shape[1] == shape[-1]:
            raise ValueError(f"latents of shape {shape} may be (…, d) or (b, d, …): pass channel_first")
        channel_first = shape[-1] != dim
    if shape[1 if channel_first else -1] != dim:
        raise ValueError(f"channel_first={channel_first} needs {dim} channels there, got latents of shape {shape}")
    return (latents.movedim(1, -1) if channel_first else latents).reshape(-1, dim)


def own_snapshot(quantizer: Quantizer, x_nd: Tensor) -> Snapshot:
    """What one of this library's quantizers makes of latents; of several codebooks the first is taken."""
    z_nd = project(quantizer.project_in, x_nd)
    if isinstance(quantizer, CompositeQuantizer):
        part = quantizer.part(0)
        return own_snapshot(part, z_nd[:, : part.dim] if isinstance(quantizer, GroupedVQ) else z_nd)
    if isinstance(quantizer, CodebookQuantizer):
        return distance_snapshot(quantizer.to_code_space(z_nd), quantizer.codebook.detach().clone())
    winners_n = quantizer(x_nd).indices
    learned = any(p.shape == (quantizer.codebook_size, quantizer.codebook_dim) for p in quantizer.parameters(False))
    codebook_kd = quantizer.codebook.detach().clone() if learned else None
    return Snapshot(z_nd, winners_n, codebook_kd, quantizer.codebook_size, by_distance=False)


def bare_snapshot(z_nd: Tensor) -> Snapshot:
    """Latents that nothing quantises."""
    return Snapshot(z_nd, torch.empty(0, dtype=torch.int64, device=z_nd.device), None, 0, by_distance=False)


def distance_snapshot(z_nd: Tensor, codebook_kd: Tensor, metric: Metric = "l2") -> Snapshot:
    """Latents and the nearest of the codes; by cosine, both are scaled to unit length."""
    if metric == "cosine":
        z_nd, codebook_kd = F.normalize(z_nd, dim=1), F.normalize(codebook_kd, dim=1)
    codebook_kd = codebook_kd.to(z_nd.dtype)
    return Snapshot(z_nd, nearest(z_nd, codebook_kd), codebook_kd, len(codebook_kd), by_distance=True)


def codebook_of(quantizer: Any, codebook: Tensor | Callable[[], Tensor] | None) -> Tensor:
    """The codebook ``(k, d)`` as it is now, of the argument or else of the quantizer's attribute ``codebook``."""
    if codebook is None:
        if not hasattr(quantizer, "codebook"):
            cure = "pass codebook=, a tensor (k, d) or a function"
            raise ValueError(f"{type(quantizer).__name__} has no attribute 'codebook': {cure}")
        codebook = quantizer.codebook
    found = codebook() if callable(codebook) else codebook
    if not isinstance(found, Tensor):
        raise ValueError(f"the codebook must be a tensor (k, d), got {type(found).__name__}")
    codes = found.detach()
    if codes.ndim == 3 and len(codes) == 1:
        codes = codes[0]
    if codes.ndim != 2:
        raise ValueError(f"the codebook must have shape (k, d), got {tuple(codes.shape)}: of several, pass one")
    return codes.clone()


def parts_of(quantizer: Any) -> list[Quantizer]:
    """The quantizers of this library that count the age of their codes, without repetition."""
    if isinstance(quantizer, CompositeQuantizer):
        return [part for inner in quantizer.quantizers for part in parts_of(inner)]
    return [quantizer] if isinstance(quantizer, Quantizer) else []


def pending_starts(quantizer: Any) -> list[KMeansStart]:
    """The k-means starts in a quantizer that still wait for latents."""
    parts = [part for part in parts_of(quantizer) if isinstance(part, CodebookQuantizer)]
    return [part.start for part in parts if not part.start.done and not part.freeze_codebook]


def has_started(quantizer: Any, snapshot: Snapshot) -> bool:
    """Whether the codes are where training put them, not on the way of a k-means start."""
    if pending_starts(quantizer):
        return False
    codes = snapshot.codebook
    return codes is None or len(codes) == 1 or bool((codes != codes[0]).any())


def describe(quantizer: Any, codebook: Any = None) -> str:
    """What a meter measures of a quantizer or a codebook, in one sentence."""
    if codebook is None and quantizer is None:
        return "latents; there is no quantizer"
    if codebook is None and isinstance(quantizer, CompositeQuantizer):
        which = "group" if isinstance(quantizer, GroupedVQ) else "level"
        inner = describe(quantizer.part(0))
        return f"{inner}; of {quantizer.indices_per_position} {which}s the first, but ages and recent usage of all"
    if codebook is None and isinstance(quantizer, Quantizer) and not isinstance(quantizer, CodebookQuantizer):
        return "latents, selected codes and usage; codes are not found by distance, so not how they follow"
    return "latents, cells, codes and how they follow"
