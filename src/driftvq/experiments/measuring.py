"""How often codes are used, and where they lie, for the report.

Shape suffixes: k codes, n latents, d dimensions.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from driftvq.metrics.evaluation import Pairs
from driftvq.models import VQVAE
from driftvq.quantizers.codebook import CodebookQuantizer

MOST_CODES, MOST_LATENTS = 2000, 500


class CodeCounts:
    """Counts the codes of an evaluation as it passes by."""

    def __init__(self, codebook_size: int) -> None:
        self.counts = torch.zeros(codebook_size, dtype=torch.int64)

    def watch(self, pairs: Pairs) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """The pairs, unchanged."""
        for real, fake, indices in pairs:
            if indices is not None:
                self.counts += torch.bincount(indices.flatten().cpu(), minlength=len(self.counts))
            yield real, fake, indices


def describe_codes(model: VQVAE, counts: Tensor, images: Iterable[Tensor]) -> dict[str, Any]:
    """The contents of ``codes.json``.

    Args:
        model: with a quantizer.
        counts: how often each code was selected.
        images: batches in [-1, 1], whose latents are shown beside the codes.
    """
    quantizer = model.quantizer
    assert quantizer is not None
    codes_kd = quantizer.codebook.detach().float().cpu()
    shown = torch.linspace(0, len(codes_kd) - 1, min(len(codes_kd), MOST_CODES)).round().long()
    latents_nd = code_space_latents(model, images)
    latents_nd = latents_nd[torch.linspace(0, len(latents_nd) - 1, min(len(latents_nd), MOST_LATENTS)).long()]
    places = flattened(torch.cat([codes_kd[shown], latents_nd]))
    return {
        "counts": counts.tolist(),
        "points": places[: len(shown)].tolist(),
        "point_codes": shown.tolist(),
        "latents": places[len(shown) :].tolist(),
    }


@torch.no_grad()
def code_space_latents(model: VQVAE, images: Iterable[Tensor]) -> Tensor:
    """The latents where the quantizer compares them with its codes ``(n, d)``; none if it does not compare."""
    quantizer = model.quantizer
    if not isinstance(quantizer, CodebookQuantizer):
        return torch.zeros(0, 0 if quantizer is None else quantizer.codebook_dim)
    rows = [model.latents(batch).movedim(1, -1).reshape(-1, quantizer.dim).float() for batch in images]
    projected_nd: Tensor = quantizer.project_in(torch.cat(rows))
    return quantizer._to_code_space(projected_nd).float().cpu()


def flattened(points_nd: Tensor) -> Tensor:
    """The two principal components ``(n, 2)``, with four digits; a second one of 0 for one dimension."""
    centred_nd = (points_nd - points_nd.mean(dim=0)).double()
    _, axes_dd = torch.linalg.eigh(centred_nd.t() @ centred_nd)
    places_n2: Tensor = centred_nd @ axes_dd.flip(1)[:, :2]
    if places_n2.shape[1] < 2:
        places_n2 = torch.cat([places_n2, torch.zeros_like(places_n2)], dim=1)
    scale = float(places_n2.abs().max()) or 1.0
    rounded_n2: Tensor = (places_n2 / scale * 1e4).round() * (scale / 1e4)
    return rounded_n2
