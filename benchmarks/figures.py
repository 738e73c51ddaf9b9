"""The figures of the docs, drawn from tables of docs/results: lines of methods over what is varied, and maps."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from driftvq.experiments.methods import METHODS
from driftvq.files import replacing
from driftvq.records.metric_table import metric
from tables import Results, Value, mean_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CODEBOOK_SIZES = (
    "ns_vq", "trans_vq_mlp", "ema_tuned", "vqgan_ema_authors", "sim_vq",
    "ns_vq_paper", "trans_vq_mlp_paper", "vqgan_fc",
)  # fmt: skip
"""Of which the study draws Figure 3."""
OURS, THEIRS = ("NSVQ", "TransVQ", "driftvq"), ("as printed", "authors")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")


@dataclass(frozen=True)
class Lines:
    """Columns of a table over another one, a panel each, a line per method.

    Attributes:
        image: its file in docs.
        data: the name of the table.
        x: what is varied, a column.
        panels: titles by the column that is shown.
        where: values of columns that the rows must have.
        y: what all panels show, if it is the same: from nothing to all, in one scale.
        methods: which, in this order; empty: all, in the table's.
    """

    image: str
    data: str
    x: str
    panels: Mapping[str, str]
    where: Mapping[str, Value] = field(default_factory=dict)
    y: str | None = None
    methods: tuple[str, ...] = ()

    def draw(self, canvas: "Figure", results: Results) -> None:
        """Ours are thick."""
        canvas.set_size_inches(9, 3.6)
        rows = [row for row in _rows(results) if isinstance(row[self.x], int)]
        rows = [row for row in rows if all(row[name] == value for name, value in self.where.items())]
        panels = canvas.subplots(1, len(self.panels), sharey=self.y is not None)
        for axes, (name, title) in zip(panels, self.panels.items(), strict=True):
            for number, method in enumerate(self.methods or dict.fromkeys(row["method"] for row in rows)):
                points = sorted((row[self.x], mean_of(row[name])) for row in rows if row["method"] == method)
                ours = any(name in method for name in OURS) and not any(word in method for word in THEIRS)
                style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 2.5 if ours else 1.2, "marker": "o"}
                axes.plot(*zip(*points, strict=True), label=method, linestyle="-" if number < 8 else "--", **style)
            axes.set(xlabel={"K": "codebook size K"}.get(self.x, self.x), xscale="log", title=title)
            axes.set_xticks(places := sorted({row[self.x] for row in rows}), map(str, places))
            axes.minorticks_off()
            axes.grid(alpha=0.25)
            if self.y is not None:
                axes.set_ylim(0, 1.03)
        if self.y is not None:
            canvas.axes[0].set_ylabel(self.y)
        handles, labels = canvas.axes[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)


@dataclass(frozen=True)
class Map:
    """A share over two settings, a panel per method; what was not run is empty.

    Attributes:
        image: its file in docs.
        data: the name of the table.
        x: the setting from left to right, a column.
        y: the one from bottom to top.
        share: the column that is shown, between 0 and 1.
        label: what it is.
    """

    image: str
    data: str
    x: str
    y: str
    share: str
    label: str

    def draw(self, canvas: "Figure", results: Results) -> None:
        canvas.set_size_inches(9, 4.4)
        rows = _rows(results)
        methods = list(dict.fromkeys(row["method"] for row in rows))
        left, up = (sorted({row[name] for row in rows}) for name in (self.x, self.y))
        panels = list(canvas.subplots(2, -(-len(methods) // 2), sharex=True, sharey=True).flat)
        for axes in panels:
            axes.set_axis_off()
        for axes, method in zip(panels, methods, strict=False):
            shares = {(row[self.x], row[self.y]): mean_of(row[self.share]) for row in rows if row["method"] == method}
            image = axes.imshow(
                [[shares.get((x, y), float("nan")) for x in left] for y in up], cmap="viridis", vmin=0, vmax=1,
                origin="lower", aspect="auto",
            )  # fmt: skip
            for (x, y), share in shares.items():
                colour = "black" if share > 0.6 else "white"
                place = left.index(x), up.index(y)
                axes.text(*place, f"{share:.0%}", ha="center", va="center", color=colour, fontsize=8)
            axes.set_axis_on()
            axes.set_title(method, fontsize=9)
            axes.set_xticks(range(len(left)), map(str, left))
            axes.set_yticks(range(len(up)), map(str, up))
        canvas.supxlabel(self.x, fontsize=10)
        canvas.supylabel(self.y, fontsize=10)
        canvas.colorbar(image, ax=list(canvas.axes), label=self.label)


FIGURES = (
    Lines(
        "images/collapse.png", "collapse-grid", "K",
        {"usage@300": "after 300 steps", "usage": "after 2,500 steps"}, {"D": 64}, "share of the codes in use",
    ),
    Lines(
        "images/study-batch-size.png", "study-figure-batch-size", "batch size",
        {name: metric(name).heading for name in ("rfid", "psnr", "usage")},
    ),
    Lines(
        "images/study-batch-size-steps.png", "study-figure-batch-size-steps", "batch size",
        {name: metric(name).heading for name in ("rfid", "psnr", "usage")},
    ),
    Lines(
        "images/study-codebook-size.png", "study-cells", "K",
        {name: metric(name).heading for name in ("rfid", "psnr", "usage")}, {"D": 64},
        methods=tuple(METHODS[name].label for name in CODEBOOK_SIZES),
    ),
    Map("images/drift-map.png", "drift-map", "batch size", "K", "usage@300", "codes in use after 300 steps"),
)  # fmt: skip


def draw(figure: Lines | Map, results: Results, place: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(layout="constrained")
    FigureCanvasAgg(canvas)
    figure.draw(canvas, results)
    with replacing(place) as temporary:
        canvas.savefig(temporary, format="png", dpi=100, metadata={"Data": digest(results)})


def _rows(results: Results) -> list[dict[str, Any]]:
    return [dict(zip(results.columns, row, strict=True)) for row in results.rows]


def digest(results: Results) -> str:
    """What a figure says of its data."""
    return hashlib.sha256(json.dumps([results.columns, results.rows]).encode()).hexdigest()


def drawn_from(figure: Path) -> str | None:
    """The data that a figure says it was drawn from."""
    if not figure.is_file():
        return None
    with Image.open(figure) as image:
        return str(image.info.get("Data"))
