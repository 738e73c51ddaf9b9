"""Usage and PSNR against the steps of training, drawn from the results of collapse.py."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from collapse_methods import METHODS
from driftvq.files import replacing

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
MARKERS = "osD^v<>xP*h"
PANELS = {"usage": "share of the codes in use", "psnr": "PSNR in dB"}


def draw_curves(results: Mapping[str, Sequence[dict[str, Any]]], title: str, place: Path) -> None:
    """One line per method, the mean over its seeds; ours are thick."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, label) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for number, (method, runs) in enumerate(results.items()):
            _draw(axes, method, number, [run["history"] for run in runs], name)
        axes.set(xlabel="training step", ylabel=label, xscale="log")
        axes.grid(alpha=0.25)
    figure.suptitle(title)
    figure.legend(*figure.axes[1].get_legend_handles_labels(), loc="outside right center", frameon=False)
    with replacing(place) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _draw(axes: Axes, method: str, number: int, histories: list[list[dict[str, float]]], name: str) -> None:
    steps = [point["step"] for point in histories[0] if name in point]
    means = [
        statistics.mean(point[name] for history in histories for point in history if point["step"] == step)
        for step in steps
    ]
    axes.plot(
        steps,
        means,
        color=COLOURS[number % len(COLOURS)],
        linestyle="-" if number < len(COLOURS) else "--",
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        linewidth=2.5 if METHODS[method].ours else 1.2,
        label=METHODS[method].label,
    )
