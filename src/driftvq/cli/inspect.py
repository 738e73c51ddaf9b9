"""``driftvq inspect``: what is in a model, and whether its codebook is alive."""

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from driftvq.cli.arguments import EMBEDDED, WHOSE, arg, find_run, number, say
from driftvq.drift_meter import WORDS

EXAMPLES = """examples:
  driftvq inspect runs/x                       model, codebook, training, drift, verdict
  driftvq inspect runs/x --data photos/        and how those images use the codes
  driftvq inspect user/name --json             a model on the hub, for a program to read
"""
ARGUMENTS = (
    WHOSE,
    arg("--data", metavar="SPEC",
        help="measure the use of the codes on these images: a folder, a list, shards, hf:NAME, or "
        f"'{EMBEDDED}' for the photographs that come with the packages"),
    number("--size", "side of the images in pixels (default: the run's, or 64)"),
    number("--limit", "images at most (default: 1000)", default=1000),
    arg("--json", action="store_true", help="print one JSON object instead of text"),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Print what is known about a model."""
    from driftvq.data import open_source
    from driftvq.inspection import inspect_model
    from driftvq.models import VQVAE

    folder, model = find_run(args.model), None
    if folder is None or any((folder / place).exists() for place in ("model/config.json", "config.json")):
        model = VQVAE.from_pretrained(args.model)
    else:
        say(f"driftvq inspect: {args.model} has not saved a model yet; this is what its records say")
    images = None if args.data is None else open_source(None if args.data == EMBEDDED else args.data, "all")
    if images is not None and (model is None or model.quantizer is None):
        say(f"driftvq inspect: --data has no effect: {args.model} has no codebook")
    report = inspect_model(model, folder, images, args.size, args.limit)
    if args.json:
        sys.stdout.write(json.dumps({"source": str(args.model), **report}, indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(to_text(report))


WIDTH, CHART = 80, 24  # columns
BARS = "▁▂▃▄▅▆▇█"
SHARES = (  # values whose highest bar is 1; that of the others is the highest value
    *("affine_share", "cells_changed", "cells_changed_by_latents"),
    *("follow_selected", "follow_unselected", "recent_usage"),
)


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
    parts = ["Model\n                      not saved yet"] if report["model"] is None else []
    sections = {"model": _model, "codebook": _codebook, "use": _use, "training": _training, "drift": _drift}
    parts += [section(report[name]) for name, section in sections.items() if report[name] is not None]
    state, why = report["verdict"]["state"], report["verdict"]["why"]
    return "\n\n".join([*parts, textwrap.fill(f"Verdict: {state}. {why[0].upper()}{why[1:]}.", WIDTH)]) + "\n"


def _section(title: str, rows: Mapping[str, str | None]) -> str:
    """A title over rows of a name and a text; those without a text are left out."""
    named = [(f"  {name:<20}", text) for name, text in rows.items() if text]
    filled = [textwrap.fill(text, WIDTH, initial_indent=name, subsequent_indent=" " * 22) for name, text in named]
    return "\n".join([title, *filled])


def _model(model: Mapping[str, Any]) -> str:
    config, counts, tokens = model["config"], model["parameters"], model.get("tokens")
    options = [f"{name}={value}" for name, value in config["quantizer_options"].items()]
    rows = {"made of": ", ".join([f"{config['network']} network", f"quantizer {config['quantizer']}", *options])}
    rows["parameters"] = f"{counts['total']:,}"
    rows |= {f"  {name}": f"{counts[name]:,}" for name in ("encoder", "quantizer", "codes", "decoder") if counts[name]}
    if tokens is not None:
        size, stride = (f"{side}×{side}" for side in (tokens["size"], model["downscale"]))
        bits = f"{tokens['bits_per_image']:,.0f} bits, {tokens['bits_per_pixel']:.3g} per pixel"
        rows["tokens"] = f"{tokens['indices']:,} for {size} pixels, one position per {stride}: {bits}"
    return _section("Model", {**rows, "hash": model["hash"][:16]})


def _codebook(codebook: Mapping[str, Any]) -> str:
    places, age, steps = codebook["indices_per_position"], codebook["age"], codebook["training_steps"]
    several = f", {places} codebooks" if places > 1 else ""
    rows: dict[str, str | None] = {"size": f"{codebook['codes']:,} codes of {codebook['dim']} dimensions{several}"}
    rows["codes"] = None if codebook["learned"] else "a fixed grid; nothing to learn"
    rows["length of codes"] = _range(codebook.get("norm"))
    rows["to nearest other"] = _range(codebook.get("neighbour_distance"))
    if "neighbour_distance" in codebook:
        near = f"{codebook['near_repeats']:,} within 1 % of the spread of one"
        rows["repeated"] = f"{codebook['repeated_codes']:,} equal to another code, {near}"
    rows["k-means start"] = codebook["kmeans_start"]
    if age is None:
        rows["age"] = "unknown: this codebook has seen no training step"
    else:
        shown = f"median {age['median']:,.0f}, 90th percentile {age['p90']:,.0f}, oldest {age['max']:,.0f}"
        dead = f"{codebook['dead_codes']:,} not selected in the last {min(100, steps)} of {steps:,} training steps"
        rows |= {"age in steps": shown, "dead": dead}
    return _section("Codebook", rows)


def _use(use: Mapping[str, Any]) -> str:
    unreadable = f" ({use['skipped']:,} unreadable)" if use["skipped"] else ""
    perplexity = f"{use['perplexity']:,.1f} of {use['codebook_size']:,}"
    rows = {"selected": f"{use['usage']:.1%} of the codes", "perplexity": perplexity}
    return _section(f"On {use['images']:,} images{unreadable}", rows)


def _training(training: Mapping[str, Any]) -> str:
    lines = [f"{'Training, ' + format(training['steps'], ',') + ' steps':<28}{'last':>12}  best"]
    for name, entry in training["last"].items():
        best = training["best"].get(name)
        when = "" if best is None else f"  {best['value']:.4g} at step {best['step']:,}"
        lines.append(f"  {name:<26}{entry['value']:>12.4g}{when}")
    return "\n".join(lines)


def _drift(drift: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    steps = [step for series in drift.values() for step, _ in series]
    lines = [f"Drift between readings, steps {min(steps):,} to {max(steps):,}: first → last"]
    for name, label in WORDS.items():
        if name in drift:
            values = [value for _, value in drift[name]]
            bars = sparkline(values, 1.0 if name in SHARES else None)
            lines.append(f"  {label:<27}{bars:<{CHART + 2}}{_short(values[0])} → {_short(values[-1])}")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value.is_integer() else f"{round(value, 2) + 0.0:.2f}"


def _range(summary: Mapping[str, float | None] | None) -> str | None:
    if summary is None or None in summary.values():
        return None if summary is None else "not finite"
    return f"{summary['min']:.3g} to {summary['max']:.3g}, median {summary['median']:.3g}"
