"""The figures of the docs: lines of methods over what is varied, drawn from tables of docs/results."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from driftvq.files import replacing
from driftvq.records.metric_table import metric
from tables import Results, Value, mean_of

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")


@dataclass(frozen=True)
class Figure:
    """Columns of a table over another one, a panel each.

    Attributes:
        image: its file in docs.
        data: the name of the table.
        x: what is varied, a column.
        panels: titles by the column that is shown.
        where: values of columns that the rows must have.
        y: what all panels show, if it is the same.
    """

    image: str
    data: str
    x: str
    panels: Mapping[str, str]
    where: Mapping[str, Value] = field(default_factory=dict)
    y: str | None = None


FIGURES = (
    Figure(
        "images/collapse.png", "collapse-grid", "K",
        {"usage@300": "after 300 steps", "usage": "after 2,500 steps"}, {"D": 64}, "share of the codes in use",
    ),
    Figure(
        "images/study-batch-size.png", "study-figure-batch-size", "batch size",
        {name: metric(name).heading for name in ("rfid", "psnr", "usage")},
    ),
)  # fmt: skip


def draw(figure: Figure, results: Results, place: Path) -> None:
    """Ours are thick; panels that show the same have one scale, from nothing to all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(canvas)
    at = {name: i for i, name in enumerate(results.columns)}
    rows = [row for row in results.rows if isinstance(row[at[figure.x]], int)]
    rows = [row for row in rows if all(row[at[name]] == value for name, value in figure.where.items())]
    methods = list(dict.fromkeys(str(row[at["method"]]) for row in rows))
    panels = canvas.subplots(1, len(figure.panels), sharey=figure.y is not None)
    for axes, (name, title) in zip(panels, figure.panels.items(), strict=True):
        for number, method in enumerate(methods):
            points = sorted((row[at[figure.x]], mean_of(row[at[name]])) for row in rows if row[at["method"]] == method)
            ours = "NSVQ" in method or "TransVQ" in method or "driftvq" in method
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 2.5 if ours else 1.2, "marker": "o"}
            axes.plot(*zip(*points, strict=True), label=method, linestyle="-" if number < 8 else "--", **style)
        axes.set(xlabel={"K": "codebook size K"}.get(figure.x, figure.x), xscale="log", title=title)
        axes.set_xticks(places := sorted({int(row[at[figure.x]]) for row in rows}), map(str, places))  # type: ignore[arg-type]
        axes.minorticks_off()
        axes.grid(alpha=0.25)
        if figure.y is not None:
            axes.set_ylim(0, 1.03)
    if figure.y is not None:
        canvas.axes[0].set_ylabel(figure.y)
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    with replacing(place) as temporary:
        canvas.savefig(temporary, format="png", dpi=100, metadata={"Data": digest(results)})


def digest(results: Results) -> str:
    """What a figure says of its data."""
    return hashlib.sha256(json.dumps([results.columns, results.rows]).encode()).hexdigest()


def drawn_from(figure: Path) -> str | None:
    """The data that a figure says it was drawn from."""
    if not figure.is_file():
        return None
    with Image.open(figure) as image:
        return str(image.info.get("Data"))
