"""``driftvq inspect``: what is in a model, and whether its codebook is alive."""

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from driftvq.cli.arguments import add_model, find_run, say, whole
from driftvq.drift_meter import WORDS

EXAMPLES = """examples:
  driftvq inspect runs/x                       model, codebook, training, drift, verdict
  driftvq inspect runs/x --data photos/        and how those images use the codes
  driftvq inspect user/name --json             a model on the hub, for a program to read
"""
EMBEDDED = "embedded"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq inspect``."""
    parser.epilog = EXAMPLES
    add_model(parser)
    parser.add_argument(
        "--data",
        metavar="SPEC",
        help="measure the use of the codes on these images: a folder, a list, shards, hf:NAME, or "
        f"'{EMBEDDED}' for the photographs that come with the packages",
    )
    parser.add_argument(
        "--size", type=whole(1), metavar="N", help="side of the images in pixels (default: the run's, or 64)"
    )
    parser.add_argument("--limit", type=whole(1), default=1000, metavar="N", help="images at most (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> None:
    """Print what is known about a model."""
    from driftvq.inspection import DEFAULT_SIZE, inspect_model, read_run_config

    folder = find_run(args.model)
    size = args.size or int((read_run_config(folder) or {}).get("size") or DEFAULT_SIZE)
    model = load_model(args.model, folder)
    batches = None if args.data is None else open_batches(args.data, size, args.limit)
    if batches is not None and (model is None or model.quantizer is None):
        say(f"driftvq inspect: --data has no effect: {args.model} has no codebook")
    report = inspect_model(model, folder, batches, size)
    if args.json:
        sys.stdout.write(json.dumps({"source": str(args.model), **report}, indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(to_text(report))


def load_model(name: str, folder: Path | None) -> Any:
    """The model, or None for a run that has not saved one yet."""
    from driftvq.models import VQVAE

    if folder is not None and not any((folder / place).exists() for place in ("model/config.json", "config.json")):
        say(f"driftvq inspect: {name} has not saved a model yet; this is what its records say")
        return None
    return VQVAE.from_pretrained(name)


def open_batches(spec: str, size: int, limit: int) -> Any:
    """Images to measure on, all splits."""
    from driftvq.data import eval_batches, open_source

    source = open_source(None if spec == EMBEDDED else spec, "all")
    return eval_batches(source, size=size, batch_size=16, limit=limit)


WIDTH = 80
BARS = "▁▂▃▄▅▆▇█"
CHART = 24
SHARES = {
    *("affine_share", "cells_changed", "cells_changed_by_latents"),
    *("follow_selected", "follow_unselected", "recent_usage"),
}
"""Values whose highest bar is 1; that of the others is the highest value."""


def sparkline(values: Sequence[float], top: float | None = None, width: int = CHART) -> str:
    """A line of bars from 0 to ``top``; neighbours are averaged where there are more values than columns."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    highest = (max(means) if top is None else top) or 1.0
    return "".join(BARS[round((len(BARS) - 1) * min(1.0, max(0.0, mean / highest)))] for mean in means)


def to_text(report: Mapping[str, Any]) -> str:
    """The whole report, the verdict last."""
    parts = [_model(report["model"]), _codebook(report["codebook"]), _use(report["use"])]
    parts += [_training(report["training"]), _drift(report["drift"]), _verdict(report["verdict"])]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _row(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<20}", subsequent_indent=" " * 22)


def _model(model: Mapping[str, Any] | None) -> list[str]:
    if model is None:
        return ["Model", *_row("", "not saved yet")]
    config, counts = model["config"], model["parameters"]
    made = f"{config['network']} network, quantizer {config['quantizer']}"
    options = ", ".join(f"{name}={value}" for name, value in config["quantizer_options"].items())
    lines = ["Model", *_row("made of", made + (f", {options}" if options else ""))]
    lines += _row("parameters", f"{counts['total']:,}")
    for name in ("encoder", "quantizer", "codes", "decoder"):
        lines += _row(f"  {name}", f"{counts[name]:,}") if counts[name] else []
    tokens = model.get("tokens")
    if tokens is not None:
        lines += _row(
            "tokens",
            f"{tokens['indices']:,} for {tokens['size']}×{tokens['size']} pixels, one position per "
            f"{model['downscale']}×{model['downscale']}: {tokens['bits_per_image']:,.0f} bits, "
            f"{tokens['bits_per_pixel']:.3g} per pixel",
        )
    return lines + _row("hash", model["hash"][:16])


def _codebook(codebook: Mapping[str, Any] | None) -> list[str]:
    if codebook is None:
        return []
    places = codebook["indices_per_position"]
    several = f", {places} codebooks" if places > 1 else ""
    lines = ["Codebook", *_row("size", f"{codebook['codes']:,} codes of {codebook['dim']} dimensions{several}")]
    if not codebook["learned"]:
        lines += _row("codes", "a fixed grid; nothing to learn")
    if "norm" in codebook:
        lines += _row("length of codes", _range(codebook["norm"]))
    if "neighbour_distance" in codebook:
        repeated, near = codebook["repeated_codes"], codebook["near_repeats"]
        lines += _row("to nearest other", _range(codebook["neighbour_distance"]))
        lines += _row("repeated", f"{repeated:,} equal to another code, {near:,} within 1 % of the spread of one")
    if codebook["kmeans_start"] is not None:
        lines += _row("k-means start", codebook["kmeans_start"])
    if codebook["age"] is None:
        return lines + _row("age", "unknown: this codebook has seen no training step")
    age = codebook["age"]
    ages = f"median {age['median']:,.0f}, 90th percentile {age['p90']:,.0f}, oldest {age['max']:,.0f}"
    lines += _row("age in steps", ages)
    within = min(100, codebook["training_steps"])
    return lines + _row(
        "dead",
        f"{codebook['dead_codes']:,} not selected in the last {within} of "
        f"{codebook['training_steps']:,} training steps",
    )


def _use(use: Mapping[str, Any] | None) -> list[str]:
    if use is None:
        return []
    lines = [f"On {use['images']:,} images" + (f" ({use['skipped']:,} unreadable)" if use["skipped"] else "")]
    lines += _row("selected", f"{use['usage']:.1%} of the codes")
    return lines + _row("perplexity", f"{use['perplexity']:,.1f} of {use['codebook_size']:,}")


def _training(training: Mapping[str, Any] | None) -> list[str]:
    if training is None:
        return []
    lines = [f"{'Training, ' + format(training['steps'], ',') + ' steps':<28}{'last':>12}  best"]
    for name, entry in training["last"].items():
        best = training["best"].get(name)
        when = "" if best is None else f"  {best['value']:.4g} at step {best['step']:,}"
        lines.append(f"  {name:<26}{entry['value']:>12.4g}{when}")
    return lines


def _drift(drift: Mapping[str, Sequence[tuple[int, float]]] | None) -> list[str]:
    if drift is None:
        return []
    steps = [step for series in drift.values() for step, _ in series]
    lines = [f"Drift between readings, steps {min(steps):,} to {max(steps):,}: first → last"]
    for name, label in WORDS.items():
        if name in drift:
            values, top = [value for _, value in drift[name]], 1.0 if name in SHARES else None
            lines.append(
                f"  {label:<27}{sparkline(values, top):<{CHART + 2}}{_short(values[0])} → {_short(values[-1])}"
            )
    return lines


def _verdict(verdict: Mapping[str, str]) -> list[str]:
    return textwrap.wrap(f"Verdict: {verdict['state']}. {verdict['why'][0].upper()}{verdict['why'][1:]}.", WIDTH)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value.is_integer() else f"{round(value, 2) + 0.0:.2f}"


def _range(summary: Mapping[str, float | None]) -> str:
    if None in summary.values():
        return "not finite"
    return f"{summary['min']:.3g} to {summary['max']:.3g}, median {summary['median']:.3g}"
