"""Pictures of the toy demos: the paper's figures, animations, and curves over time."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from PIL import Image

from driftvq.files import make_folder
from driftvq.toys.clouds import Array
from driftvq.toys.rules import winners
from driftvq.toys.trajectories import Trajectory, kmeans_optimum, run_demos

TARGET, BASE, CLOUD, BATCH, CODE = "#c9b3e6", "#3a9d4f", "#a9cbee", "#1f5fbf", "#d40000"
LABELS = {
    "vanilla": ("vanilla VQ (EMA)", "#d40000"),
    "ns_vq": ("NSVQ (driftvq)", "#1f5fbf"),
    "ns_vq_toy": ("NS-VQ (paper's toy rule)", "#1f5fbf"),
    "trans_vq": ("TransVQ (driftvq)", "#3a9d4f"),
    "trans_vq_toy": ("TransVQ (paper's form)", "#3a9d4f"),
}
"""Names and colours; a method of the library and the paper's form of it, whose line is dashed, have one colour."""
OTHER_LINES = ("#e08a00", "#7a4fb5", "#555555")
LINEAR_STEPS = 50  # curves are linear in time while the cloud drifts, logarithmic after
SHOWN_STEPS = (0, 20, 40, 100, 400)
GIF_STEPS = (*range(0, 10), 12, 15, 19, 24, 30, 37, 50, 100, 450)
GIF_DPI, GIF_COLOURS = 64, 32
TITLE = 11  # points: an animation is shown small
FRAME_MS, LAST_FRAME_MS = 160, 1500


def label(method: str) -> str:
    """The name of a method in a figure."""
    return LABELS[method][0] if method in LABELS else f"{method} (library defaults)"


def draw_gallery(
    demos: Sequence[str], methods: Sequence[str], seed: int, out: Path, progress: Callable[[str], None]
) -> list[Path]:
    """A figure per method, the curves and, of the first method beside the second, a GIF per demo; returns the files."""
    make_folder(out)
    started = time.perf_counter()

    def tell(what: str) -> None:
        progress(f"{time.perf_counter() - started:5.1f} s  {what}")

    results = {}
    for method in methods:
        results[method] = run_demos([(demo, seed) for demo in demos], method)
        tell(f"ran {method}")
    files = [draw_method(of_method, out / f"{method}.png") for method, of_method in results.items()]
    everything = [trajectory for of_method in results.values() for trajectory in of_method]
    files.append(draw_curves(everything, out / "curves.png"))
    tell("drew the figures")
    if len(methods) > 1:
        pairs = zip(results[methods[0]], results[methods[1]], strict=True)
        files += [animate(left, right, out / f"{left.demo}.gif") for left, right in pairs]
        tell("drew the animations")
    progress("\n".join(map(str, files)))
    return files


def draw_method(trajectories: Sequence[Trajectory], path: Path) -> Path:
    """The paper's figure of one method: a row per demo, five snapshots."""
    rows, columns = len(trajectories), len(trajectories[0].snapshots)
    figure = Figure(figsize=(2.3 * columns, 2.35 * rows + 0.75))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, trajectory in zip(grid, trajectories, strict=True):
        for axis, snapshot in zip(axes, trajectory.snapshots, strict=True):
            positions = trajectory.positions(snapshot.step)
            _frame(axis, trajectory)
            axis.plot(*trajectory.cloud.initial.T, ".", ms=2.5, mew=0, color=BASE, alpha=0.35, label="base data X")
            axis.plot(*positions.T, ".", ms=2.5, mew=0, color=CLOUD, alpha=0.6, label="cloud now")
            axis.plot(*snapshot.batch.T, ".", ms=4, mew=0, color=BATCH, label="current batch $X_b$")
            _place_codes(_code_artists(axis), trajectory.codebooks[snapshot.step], positions)
            axis.set_title(f"step {snapshot.step}: {_used(trajectory, snapshot.step)}", fontsize=9)
        axes[0].set_ylabel(trajectory.demo, fontsize=12)
    ends = ", ".join(f"{trajectory.codes_used} in {trajectory.demo}" for trajectory in trajectories)
    figure.suptitle(f"{label(trajectories[0].method)}: codes still used at the end: {ends}", fontsize=13)
    handles, names = grid[0, 1].get_legend_handles_labels()
    for handle in figure.legend(handles, names, loc="lower center", ncols=6, fontsize=9, frameon=False).get_lines()[:4]:
        handle.set(markersize=9, alpha=1)
    return _save(figure, path)


def draw_curves(trajectories: Sequence[Trajectory], path: Path) -> Path:
    """Usage and distortion over time: a column per demo, a line per method, the k-means optimum dashed."""
    demos = list(dict.fromkeys(trajectory.demo for trajectory in trajectories))
    methods = list(dict.fromkeys(trajectory.method for trajectory in trajectories))
    figure = Figure(figsize=(2.9 * len(demos) + 0.3, 5.0))
    grid = figure.subplots(2, len(demos), squeeze=False, sharex=True)
    for (above, below), demo in zip(grid.T, demos, strict=True):
        of_demo = [trajectory for trajectory in trajectories if trajectory.demo == demo]
        for trajectory in of_demo:
            style = _line(trajectory.method, methods)
            above.plot(trajectory.usage * trajectory.codebooks.shape[1], label=label(trajectory.method), **style)
            below.plot(trajectory.distortion, **style)
        _, optimum = kmeans_optimum(of_demo[0].positions(-1), of_demo[0].codebooks.shape[1])
        below.axhline(optimum, color="black", ls="--", lw=1.2, label="k-means optimum of the final cloud")
        above.set(title=demo, ylim=(0, of_demo[0].codebooks.shape[1] + 0.8), xlim=(0, len(of_demo[0].usage) - 1))
        above.set_xscale("symlog", linthresh=LINEAR_STEPS, linscale=1.2)
        below.set(xlabel="step", yscale="log")
        below.set_xticks(SHOWN_STEPS, [str(step) for step in SHOWN_STEPS])
        below.xaxis.set_minor_locator(NullLocator())
        below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        below.yaxis.set_major_formatter("{x:g}")
        below.yaxis.set_minor_locator(NullLocator())
    grid[0, 0].set_ylabel("codes used")
    grid[1, 0].set_ylabel("distortion")
    handles = [*grid[0, 0].get_legend_handles_labels()[0], *grid[1, 0].get_legend_handles_labels()[0]]
    columns = min(len(handles), max(1, len(demos)))
    figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=9, frameon=False)
    return _save(figure, path, bottom=0.03 + 0.045 * -(-len(handles) // columns))


def _line(method: str, methods: Sequence[str]) -> dict[str, Any]:
    others = [name for name in methods if name not in LABELS]
    colour = LABELS[method][1] if method in LABELS else OTHER_LINES[others.index(method) % len(OTHER_LINES)]
    width = 1.4 + 0.4 * (len(methods) - 1 - methods.index(method))  # a line below others shows at their edges
    return {"color": colour, "lw": width, "ls": (0, (4, 2)) if method.endswith("_toy") else "-"}


def animate(left: Trajectory, right: Trajectory, path: Path) -> Path:
    """An animated GIF of two methods in the same demo, side by side."""
    figure = Figure(figsize=(6.4, 3.7))
    canvas: Any = FigureCanvasAgg(figure)
    panels = [_Panel(axis, run) for axis, run in zip(figure.subplots(1, 2), (left, right), strict=True)]
    figure.tight_layout()
    figure.set_dpi(GIF_DPI)
    canvas.draw()
    background = canvas.copy_from_bbox(figure.bbox)
    frames = []
    for step in (step for step in GIF_STEPS if step < len(left.codebooks)):
        canvas.restore_region(background)
        for panel in panels:
            panel.show_(step)
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(GIF_COLOURS))
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    return path


class _Panel:
    """One side of an animation: what moves is drawn over a background that does not."""

    def __init__(self, axis: Axes, run: Trajectory) -> None:
        self.axis, self.run = axis, run
        _frame(axis, run)
        (self.cloud,) = axis.plot([], [], ".", ms=2.5, mew=0, color=BATCH, alpha=0.5, animated=True)
        self.codes = _code_artists(axis)
        axis.set_title(" \n ", fontsize=TITLE)
        axis.set_anchor("S")  # what a square axis leaves free belongs to the title above it
        self.title = axis.text(0.5, 1.03, "", transform=axis.transAxes, ha="center", fontsize=TITLE, animated=True)
        for artist in self.codes:
            artist.set_animated(True)

    def show_(self, step: int) -> None:
        positions = self.run.positions(step)
        self.cloud.set_data(*positions.T)
        _place_codes(self.codes, self.run.codebooks[step], positions)
        self.title.set_text(f"{label(self.run.method)}, step {step}\n{_used(self.run, step)}")
        for artist in (self.cloud, *self.codes, self.title):
            self.axis.draw_artist(artist)


def _code_artists(axis: Axes) -> tuple[Any, Any]:
    (used,) = axis.plot([], [], "x", ms=7, mew=1.9, color=CODE, zorder=4, label="code in use")
    (dead,) = axis.plot([], [], "x", ms=5, mew=0.9, color=CODE, alpha=0.45, zorder=3, label="dead code")
    return used, dead


def _place_codes(artists: tuple[Any, Any], codebook: Array, positions: Array) -> None:
    in_use = np.isin(np.arange(len(codebook)), winners(codebook, positions))
    for artist, chosen in zip(artists, (in_use, ~in_use), strict=True):
        artist.set_data(*codebook[chosen].T)


def _frame(axis: Axes, trajectory: Trajectory) -> None:
    """The targets, in the same square window for every panel of a demo: all that the cloud will cross."""
    axis.plot(*trajectory.cloud.targets.T, ".", ms=2.5, mew=0, color=TARGET, alpha=0.5, label="target $Y_t$")
    reached = np.concatenate([trajectory.cloud.initial, trajectory.cloud.targets])
    low, high = reached.min(axis=0), reached.max(axis=0)
    middle, half = (low + high) / 2, (high - low).max() / 2 * 1.08
    axis.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axis.set(xticks=[], yticks=[], aspect="equal")


def _used(trajectory: Trajectory, step: int) -> str:
    codes = trajectory.codebooks.shape[1]
    return f"{round(trajectory.usage[step] * codes)} of {codes} codes used"


def _save(figure: Figure, path: Path, bottom: float = 0.04) -> Path:
    figure.tight_layout(rect=(0, bottom, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"compress_level": 1})  # speckled pictures hardly compress
    return path
