"""All pictures of a set of demos and methods, into one folder."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from driftvq.toys.figures import animate, draw_curves, draw_method
from driftvq.toys.run import run_demos


def draw_gallery(
    demos: Sequence[str], methods: Sequence[str], seed: int, out: Path, progress: Callable[[str], None]
) -> list[Path]:
    """A figure per method, a GIF per demo and the curves; returns the files.

    The GIFs show the first method beside the second; with one method there are none.

    Args:
        demos, methods: names.
        seed: of the clouds.
        out: folder, made if missing.
        progress: told what was done.
    """
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is not a folder")
    out.mkdir(parents=True, exist_ok=True)
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
