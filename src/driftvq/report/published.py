"""The paper's numbers beside ours, and in words why they are not the same experiment."""

from itertools import combinations
from typing import Any

from driftvq.records.comparisons import Comparison, PaperRow
from driftvq.records.metric_table import METRICS, metric, plain_label, written, written_spread
from driftvq.report.results import Results, Row
from driftvq.report.tables import column_decimals


def gather_paper(results: Results) -> dict[str, Any] | None:
    """The paper's rows with ours; None if the comparison has no such numbers."""
    paper = results.comparison.paper
    if paper is None or not paper.rows:
        return None
    names = [name for name in METRICS if any(name in row.values for row in paper.rows)]
    names += sorted({name for row in paper.rows for name in row.values} - set(names))
    pairs = [(row, _ours(results, row)) for row in paper.rows]
    return {
        "source": paper.source,
        "difference": scale_difference(results.comparison),
        "agreement": [text for name in names if (text := _agreement(pairs, name))],
        "columns": [{"name": name, "label": metric(name).label} for name in names],
        "rows": [_beside(results, row, ours, names) for row, ours in pairs],
    }


def scale_difference(comparison: Comparison) -> str:
    """What differs between the paper's experiment and this one."""
    data, config = comparison.data, comparison.config
    words = {"train": "training images", "evaluation": "evaluation images", "size": "pixels a side"}
    here = [str(data["source"])] if "source" in data else []
    here += [f"{data[key]} {text}" for key, text in words.items() if key in data]
    here += [f"{config['steps']} steps"] if "steps" in config else []
    here += [f"batches of {config['batch_size']}"] if "batch_size" in config else []
    here += [f"network “{config['network']}”"] if "network" in config else []
    setting = comparison.paper.setting if comparison.paper else ""
    start = f"The paper: {setting}. Here, at {comparison.scale} scale: {', '.join(here)}. "
    if comparison.scale == "paper":
        return start + "The settings are the paper's; what differs is said in the notes."
    return start + "The numbers are not comparable in size; what can be compared is the order of the methods."


def _ours(results: Results, row: PaperRow) -> Row | None:
    return next((r for r in results.rows if r.method.name == row.method and r.point in (row.point, None)), None)


def _beside(results: Results, row: PaperRow, ours: Row | None, names: list[str]) -> dict[str, Any]:
    digits = column_decimals(results)
    values = {}
    for name in names:
        here = None if ours is None else ours.values.get(name)
        there = row.values.get(name)
        places = digits.get(name, 2)
        values[name] = {
            "paper": None if there is None else written(name, there, places),
            "ours": None if here is None else written(name, here.mean, places),
            "spread": None if here is None or here.spread is None else written_spread(name, here.spread, places),
        }
    return {"label": row.label, "ours": ours and ours.method.label, "point": row.point, "values": values}


def _agreement(pairs: list[tuple[PaperRow, Row | None]], name: str) -> str | None:
    """How many pairs of methods are here in the order that they have in the paper."""
    found = [
        (row.point, row.values[name], ours.values[name].mean) for row, ours in pairs if _both(row, ours, name) and ours
    ]
    compared = [(a, b) for a, b in combinations(found, 2) if a[0] == b[0] and a[1] != b[1]]
    if not compared:
        return None
    same = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in compared)
    of = "the one pair" if len(compared) == 1 else f"{len(compared)} pairs"
    verb = "is" if same == 1 else "are"
    return f"In {plain_label(name)}, {same} of {of} of methods {verb} in the same order here as in the paper."


def _both(row: PaperRow, ours: Row | None, name: str) -> bool:
    return ours is not None and name in row.values and name in ours.values
