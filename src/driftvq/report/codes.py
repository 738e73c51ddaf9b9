"""How often codes are used and where they lie, small enough for a page."""

import math
from collections.abc import Sequence
from typing import Any

from driftvq.records.fields import is_list, is_number
from driftvq.report.curves import thinned
from driftvq.report.results import Results, Row, read_codes

MAX_BARS = 200
POINTS = 120_000
"""Codes and latents of all maps of a page together."""

GRID = 1000
"""Places of a map are whole numbers up to this."""


def gather_codes(results: Results) -> list[dict[str, Any]]:
    """For each row with codes its sorted counts and its map, both of the first finished seed."""
    found = [(row, *_first(row)) for row in results.rows]
    found = [each for each in found if each[2]]
    limit = max(100, POINTS // max(1, len(found)))
    return [_drawn(row, seed, codes, limit, results) for row, seed, codes in found]


def _first(row: Row) -> tuple[int, dict[str, Any]]:
    for cell in row.done:
        codes = read_codes(cell)
        if is_list(codes.get("counts"), is_number) and codes["counts"]:
            return cell.seed, codes
    return 0, {}


def _drawn(row: Row, seed: int, codes: dict[str, Any], limit: int, results: Results) -> dict[str, Any]:
    counts = codes["counts"]
    drawn = {
        "method": results.comparison.methods.index(row.method),
        "point": row.point,
        "seed": seed,
        "size": len(counts),
        "alive": sum(count > 0 for count in counts),
        "total": sum(counts),
        "perplexity": _perplexity(counts),
    }
    ordered = sorted(counts, reverse=True)
    ranks = _ranks(len(ordered), drawn["alive"])
    return drawn | {"ranks": ranks, "counts": [ordered[rank] for rank in ranks], "map": _map(codes, limit)}


def _ranks(size: int, alive: int) -> list[int]:
    """Places of the sorted counts that show its shape: spread over the living codes, and where the dead begin."""
    ranks = set(thinned(max(alive, 1), MAX_BARS)) | {min(alive, size - 1), size - 1}
    return sorted(ranks)


def _perplexity(counts: Sequence[float]) -> float:
    """``exp(-Σ p log p)`` of the shares p."""
    total = sum(counts)
    shares = [count / total for count in counts if count > 0]
    return round(math.exp(-math.fsum(p * math.log(p) for p in shares)), 1) if shares else 0.0


def _map(codes: dict[str, Any], limit: int) -> dict[str, Any] | None:
    """Living codes, dead codes and latents on one whole-number grid; None if the file has no places."""
    points, latents = _places(codes.get("points")), _places(codes.get("latents"))
    numbers = codes.get("point_codes") or list(range(len(points)))
    if not points or len(numbers) != len(points):
        return None
    shown = thinned(len(points), max(50, limit * 4 // 5))
    latents = [latents[i] for i in thinned(len(latents), max(50, limit // 5))]
    everything = [points[i] for i in shown] + latents
    low_x, low_y = (min(place[axis] for place in everything) for axis in (0, 1))
    width, height = (max(place[axis] for place in everything) - low for axis, low in ((0, low_x), (1, low_y)))
    scale = GRID / (max(width, height) or 1.0)

    def grid(places: list[Any]) -> list[int]:
        return [n for x, y in places for n in (round((x - low_x) * scale), round((y - low_y) * scale))]

    counts = codes["counts"]
    alive = [points[i] for i in shown if counts[numbers[i]] > 0]
    dead = [points[i] for i in shown if counts[numbers[i]] <= 0]
    return {
        "width": round(width * scale),
        "height": round(height * scale),
        "alive": grid(alive),
        "dead": grid(dead),
        "latents": grid(latents),
        "shown": len(shown),
    }


def _places(value: Any) -> list[Any]:
    """A list of pairs of finite numbers; anything else is empty."""
    if not is_list(value, lambda place: is_list(place, is_number) and len(place) == 2):
        return []
    return [place for place in value if all(math.isfinite(number) for number in place)]
