"""Which codebooks live, and what they reconstruct: every method on the same network, batches and seeds.

python benchmarks/collapse.py                             # fast: embedded photographs, 300 steps, minutes
python benchmarks/collapse.py grid headline --data FACES  # groups of runs on a folder with train/ and val/; hours
python benchmarks/collapse.py all --data FACES            # every group, the full form: many hours
python benchmarks/collapse.py grid --list                 # what would run
python benchmarks/collapse.py grid --tables               # tables of what is done, without running anything
python benchmarks/collapse.py grid --tables --curves F.png # and usage and PSNR against steps at K = 1024, D = 64

Each run takes one core, and leaves one JSON file in --out; runs that are there are not repeated, and a run that was
stopped goes on from where it was at most five minutes before. Usage is measured with the weights frozen over
at least 50 latents per code where there are as many: validation images, then the same mirrored, then training
images; the column "over" says so.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from collapse_curves import draw_curves
from collapse_methods import METHODS, PHOTOS, Cell
from driftvq.names import check_name
from measure import table

PEERS = ("vq", "ema", "ema_replace", "ema_tuned", "factorized", "sim_vq", "fsq")
OURS = ("ns_vq", "trans_vq_mlp")
ALL_OURS = (*OURS, "trans_vq")
"""The form with attention costs several times as much as the others, so it is in the main tables only."""
SEEDS = 3
EPOCH = 500


def _fast(_: str) -> Iterator[Cell]:
    for method in (*ALL_OURS, *PEERS, "none"):
        yield Cell("fast", method, PHOTOS, steps=300)


def _grid(data: str) -> Iterator[Cell]:
    for seed in range(SEEDS):
        for codes in (8192, 1024, 64):
            for dim in (64, 3):
                for method in (*ALL_OURS, *PEERS):
                    yield Cell("grid", method, data, codes, dim, seed=seed)
        for dim in (64, 3):
            yield Cell("grid", "none", data, code_dim=dim, seed=seed)


def _headline(data: str) -> Iterator[Cell]:
    for seed in range(SEEDS):
        for method in (*ALL_OURS, *PEERS, "none"):
            yield Cell("headline", method, data, size=64, seed=seed)


def _large(data: str) -> Iterator[Cell]:
    for dim in (64, 3):
        for method in (*OURS, "ema_tuned", "ema_replace"):
            yield Cell("large", method, data, 65_536, dim, steps=5000)


def _robust(data: str) -> Iterator[Cell]:
    changes: tuple[dict[str, Any], ...] = (
        {"batch_size": 2},
        {"learning_rate": 5e-5},
        {"learning_rate": 5e-3},
        {"latent_scale": 1e-3},
        {"latent_scale": 1e3},
        {"warm_up": EPOCH},
    )
    for change in changes:
        for dim in (64, 3):
            for method in OURS:
                yield Cell("robust", method, data, code_dim=dim, **change)


def _few(data: str) -> Iterator[Cell]:
    """Few latents a step, many codes: K/N is 64."""
    for seed in range(SEEDS):
        for method in (*OURS, "ns_vq_no_drift", "ema_tuned"):
            yield Cell("few", method, data, 8192, batch_size=2, seed=seed)


def _options(data: str) -> Iterator[Cell]:
    for name in OURS:
        for estimator in ("rotation", "modified", "gumbel"):
            yield Cell("options", f"{name}_{estimator}", data)
        yield Cell("options", f"residual_{name}", data, 256)
        yield Cell("options", name, data, code_dim=256)


def _ablation(data: str) -> Iterator[Cell]:
    names = [name for name in METHODS if name.startswith(OURS) and (name in OURS or not METHODS[name].ours)]
    for codes in (1024, 8192):
        for method in names:
            yield Cell("ablation", method, data, codes)
    yield Cell("ablation", "trans_vq_paper", data)


def _commitment(data: str) -> Iterator[Cell]:
    methods = [*OURS, *PEERS, *(name for name in METHODS if name.endswith("committed"))]
    for seed in range(SEEDS):
        for method in methods:
            yield Cell("commitment", method, data, code_dim=3, seed=seed)
    for method in OURS:
        yield Cell("commitment", f"{method}_committed", data, 8192, 3)


def _photos(_: str) -> Iterator[Cell]:
    for method in (*ALL_OURS, *PEERS, "none"):
        yield Cell("photos", method, PHOTOS)


GROUPS: dict[str, Callable[[str], Iterator[Cell]]] = {
    "fast": _fast,
    "grid": _grid,
    "headline": _headline,
    "large": _large,
    "robust": _robust,
    "few": _few,
    "options": _options,
    "ablation": _ablation,
    "commitment": _commitment,
    "photos": _photos,
}
VARIED = {
    "size": "px",
    "codebook_size": "K",
    "code_dim": "D",
    "batch_size": "batch",
    "learning_rate": "lr",
    "latent_scale": "latents ×",
    "warm_up": "warmed up",
}
COLUMNS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "usage": lambda result: result["values"].get("usage"),
    "at step 300": lambda result: next((r.get("usage") for r in result["history"] if r["step"] == 300), None),
    "perplexity": lambda result: result["values"].get("perplexity"),
    "PSNR": lambda result: result["values"]["psnr"],
    "LPIPS": lambda result: result["values"].get("lpips_alex"),
    "rFID": lambda result: result["values"].get("rfid"),
    "relocated": lambda result: result.get("readings", {}).get("relocated"),
}
"""Columns in which no run of a group has a value are left out."""
DIGITS = {"usage": 3, "at step 300": 3, "perplexity": 0, "PSNR": 2, "LPIPS": 4, "rFID": 1, "relocated": 0}


def run(cells: Sequence[Cell], folder: Path, jobs: int) -> None:
    """Run what is not there yet, each in a process with one thread."""
    waiting = [cell for cell in {cell.key: cell for cell in cells}.values() if not result_file(cell, folder).is_file()]
    started, done = time.monotonic(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def one(cell: Cell) -> None:
        nonlocal done
        order = json.dumps(dataclasses.asdict(cell))
        script = str(Path(__file__).with_name("collapse_cell.py"))
        ended = subprocess.run(
            [sys.executable, script, order, str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        done += 1
        last = ended.stderr.strip().splitlines()[-1:] if ended.returncode else []
        outcome = f"failed: {last[0] if last else ended.returncode}" if ended.returncode else "done"
        minutes = (time.monotonic() - started) / 60
        left = minutes / done * (len(waiting) - done)
        print(f"{done}/{len(waiting)} {cell.key}: {outcome}; {minutes:.0f} min, about {left:.0f} left", flush=True)

    print(f"{len(waiting)} runs, {jobs} at a time; {len(cells) - len(waiting)} are there already", flush=True)
    pool = ThreadPoolExecutor(jobs)
    try:
        list(pool.map(one, waiting))
    finally:
        pool.shutdown(cancel_futures=True)


def result_file(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.key}.json"


def group_table(cells: Sequence[Cell], folder: Path) -> str:
    """One row per method and setting: mean and standard deviation over the seeds."""
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    varied = [name for name in VARIED if len({getattr(cell, name) for cell in cells}) > 1]
    for cell in cells:
        if result_file(cell, folder).is_file():
            place = tuple(getattr(cell, name) for name in varied)
            rows.setdefault((place, cell.method), []).append(json.loads(result_file(cell, folder).read_text()))
    columns = [
        name for name, value in COLUMNS.items() if any(value(one) is not None for some in rows.values() for one in some)
    ]
    header = [*(VARIED[name] for name in varied), "method", *columns, "over", "seeds"]
    lines = [
        [
            *(f"{value:g}" for value in place),
            METHODS[method].label,
            *(_spread([COLUMNS[name](result) for result in results], DIGITS[name]) for name in columns),
            _over(results),
            str(len(results)),
        ]
        for (place, method), results in sorted(rows.items(), key=lambda row: row[0][0])
    ]
    return table(header, lines)


def common_settings(cells: Sequence[Cell]) -> str:
    """What all runs of a group share; the rest is in the table's columns."""
    texts = {"steps": "{:,} steps", "batch_size": "batches of {}", "size": "{} px", "learning_rate": "Adam {:g}"}
    values = {name: {getattr(cell, name) for cell in cells} for name in texts}
    return ", ".join(text.format(*values[name]) for name, text in texts.items() if len(values[name]) == 1)


def curves(cells: Sequence[Cell], folder: Path, place: Path) -> None:
    """Draw what is done at K = 1024, D = 64, of the data, size and number of steps of the first run."""
    first = Cell("", "", cells[0].data, size=cells[0].size, steps=cells[0].steps)
    results: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if dataclasses.replace(cell, group="", method="", seed=0) == first and result_file(cell, folder).is_file():
            results.setdefault(cell.method, []).append(json.loads(result_file(cell, folder).read_text()))
    draw_curves(results, f"{first.data_name}, {first.size} px, K = 1024, D = 64, batches of {first.batch_size}", place)


def _spread(values: list[float | None], digits: int) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return ""
    mean = f"{statistics.mean(there):.{digits}f}"
    return mean if len(there) == 1 else f"{mean} ± {statistics.stdev(there):.{digits}f}"


def _over(results: list[dict[str, Any]]) -> str:
    values = results[0]["values"]
    return f"{values['latents_per_code']:.0f} per code, {values['images']}" if "usage" in values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", default=["fast"], help=f"{', '.join(GROUPS)} or all; default: fast")
    parser.add_argument("--data", default=PHOTOS, help="folder with train/ and val/; default: embedded photographs")
    parser.add_argument("--out", type=Path, default=Path("runs/collapse"), help="default: runs/collapse")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time; default: one per core")
    parser.add_argument("--list", action="store_true", help="name the runs, and stop")
    parser.add_argument("--curves", type=Path, help="draw usage and PSNR against steps, K = 1024 and D = 64, as PNG")
    parser.add_argument("--tables", action="store_true", help="print the tables of what is done, and stop")
    args = parser.parse_args()
    names = list(GROUPS) if args.groups == ["all"] else [check_name("group", name, GROUPS) for name in args.groups]
    groups = {name: list(GROUPS[name](args.data)) for name in names}
    cells = [cell for group in groups.values() for cell in group]
    if args.list:
        print("\n".join(cell.key for cell in cells))
        return
    if not args.tables:
        args.out.mkdir(parents=True, exist_ok=True)
        run(cells, args.out, args.jobs)
    for name, group in groups.items():
        print(f"\n## {name}: {common_settings(group)}\n")
        print(group_table(group, args.out))
    if args.curves:
        curves(cells, args.out, args.curves)


if __name__ == "__main__":
    main()
