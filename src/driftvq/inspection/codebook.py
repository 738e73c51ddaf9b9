"""What a codebook looks like by itself: lengths of the codes, their neighbours, their age.

Shape suffixes: k codes, d dimensions, b codes of one block.
"""

from typing import Any

import torch
from torch import Tensor

from driftvq.drift_meter.probing import parts_of, pending_starts
from driftvq.functional.blocks import row_blocks
from driftvq.inspection.verdict import DONE
from driftvq.models import VQVAE
from driftvq.quantizers.base import Quantizer
from driftvq.quantizers.codebook import CodebookQuantizer

RECENT = 100
"""A code that was not selected in so many of the last training steps counts as dead."""
NEAR = 0.01
"""Codes nearer to each other than this share of the codes' spread say nearly the same."""
MAX_ROWS = 8192
"""So many codes at most, evenly spaced, are asked for their neighbours."""


def neighbour_distances(codebook_kd: Tensor, rows_b: Tensor) -> Tensor:
    """Distance of the given codes to the nearest *other* code, ``(b,)``; exactly 0 for a repeated code."""
    centred_kd = (codebook_kd - codebook_kd.mean(dim=0)).double()
    half_k = centred_kd.square().sum(dim=1) / 2
    found = []
    for block in row_blocks(len(rows_b), len(codebook_kd), codebook_kd.device):
        rows = rows_b[block]
        score_bk = centred_kd[rows] @ centred_kd.t() - half_k
        score_bk[torch.arange(len(rows)), rows] = -torch.inf
        found.append((codebook_kd[rows] - codebook_kd[score_bk.argmax(dim=1)]).double().norm(dim=1))
    return torch.cat(found)


def code_tensors(quantizer: Quantizer) -> list[Tensor]:
    """The tensors that hold the codes, one per codebook; none for a fixed grid."""
    return [part.book.stored for part in parts_of(quantizer) if isinstance(part, CodebookQuantizer)]


def count_parameters(model: VQVAE) -> dict[str, int]:
    """Numbers that were learned, per part; codes count whether an optimizer moves them or not."""
    codes = [] if model.quantizer is None else code_tensors(model.quantizer)
    own = [] if model.quantizer is None else [p for p in model.quantizer.parameters() if all(p is not c for c in codes)]
    counts = {
        "encoder": sum(p.numel() for p in model.encoder.parameters()),
        "quantizer": sum(p.numel() for p in own),
        "codes": sum(c.numel() for c in codes),
        "decoder": sum(p.numel() for p in model.decoder.parameters()),
    }
    return counts | {"total": sum(counts.values())}


def describe_codebook(model: VQVAE) -> dict[str, Any] | None:
    """Size, lengths, neighbours, age and start of a model's codebook; None for a plain autoencoder."""
    quantizer = model.quantizer
    if quantizer is None:
        return None
    parts = parts_of(quantizer)
    places = max(1, quantizer.indices_per_position)
    learned = len(code_tensors(quantizer)) == len(parts)
    facts: dict[str, Any] = {
        "codes": quantizer.codebook_size,
        "dim": parts[0].codebook_dim,
        "indices_per_position": places,
        "learned": learned,
        "kmeans_start": _start(quantizer),
    }
    with torch.no_grad():
        if learned:
            facts |= _geometry([part.codebook.detach().float().cpu() for part in parts])
    return facts | _ages(quantizer, parts)


def _geometry(books: list[Tensor]) -> dict[str, Any]:
    norms = torch.cat([book.norm(dim=1) for book in books])
    distances, near, asked = [], 0, 0
    for book in books:
        if len(book) < 2:
            continue
        rows = torch.linspace(0, len(book) - 1, min(len(book), MAX_ROWS)).long()
        distance = neighbour_distances(book, rows)
        spread = (book - book.mean(dim=0)).double().square().sum(dim=1).mean().sqrt()
        near += int((distance <= NEAR * spread).sum())
        asked += len(rows)
        distances.append(distance)
    facts: dict[str, Any] = {"norm": _summary(norms)}
    if distances:
        together = torch.cat(distances)
        facts["neighbour_distance"] = _summary(together)
        facts |= {"neighbours_asked": asked, "repeated_codes": int((together == 0).sum()), "near_repeats": near}
    return facts


def _ages(quantizer: Quantizer, parts: list[Quantizer]) -> dict[str, Any]:
    steps = int(quantizer.step)
    if steps == 0:
        return {"training_steps": 0, "age": None, "dead_codes": None, "recent_usage": None}
    age = torch.cat([part.code_age for part in parts]).cpu()
    dead = int((age >= min(RECENT, steps)).sum())
    quantiles = age.double().quantile(torch.tensor([0.5, 0.9, 1.0], dtype=torch.double)).tolist()
    return {
        "training_steps": steps,
        "age": dict(zip(("median", "p90", "max"), quantiles, strict=True)),
        "dead_codes": dead,
        "recent_usage": 1 - dead / len(age),
    }


def _start(quantizer: Quantizer) -> str | None:
    """Whether a k-means start is over; None where a quantizer cannot have one."""
    if not any(isinstance(part, CodebookQuantizer) for part in parts_of(quantizer)):
        return None
    waiting = pending_starts(quantizer)
    return f"gathering, {len(waiting[0].pending)} of {waiting[0].needed} latents" if waiting else DONE


def _summary(values: Tensor) -> dict[str, float]:
    quantiles = values.double().quantile(torch.tensor([0.0, 0.5, 1.0], dtype=torch.double))
    return dict(zip(("min", "median", "max"), quantiles.tolist(), strict=True))
