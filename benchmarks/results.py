"""The tables and figures of the docs, made from docs/results/*.json.

python benchmarks/results.py                             # write what is out of date (`make results`)
python benchmarks/results.py --check                     # name it, and fail if there is any
python benchmarks/results.py add collapse-grid runs/x    # take over a finished comparison, then write
python benchmarks/results.py keep study-1024 runs/x      # or keep its records and curves, for `driftvq report` too
python benchmarks/quantizers.py | python benchmarks/results.py take step --command "…"   # or a printed table

A page has a table where it says `<!-- results: NAME -->`, up to `<!-- end -->`. Behind the name may stand rows to keep,
`K=1024 D=64 "method=VQ|EMA"`, and `columns=method,usage,psnr`. `across=K` gives each K a column, with the values of
`columns` in one cell, "rFID / usage"; with `down=K` there is a row per K instead of one per method. With
`regret=psnr,lpips_alex` the table has how far each method is from the best one of each condition. `with=NAME` adds the
rows, or for regrets the conditions, of another file. `RECIPE-published` is what the paper reports of a recipe.
docs/results.md has all tables that are marked as whole.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Hashable, Mapping
from dataclasses import asdict
from pathlib import Path

from driftvq.experiments.methods import METHODS as KNOWN_METHODS
from driftvq.experiments.recipes import RECIPES
from driftvq.files import read_object, write_text
from driftvq.names import check_name
from driftvq.records.comparisons import COMPARISON_FILE, Comparison, load_comparison
from driftvq.report import aggregate
from figures import FIGURES, digest, draw, drawn_from
from regret import regret_table
from study import keep, summaries
from tables import Results, Value, from_text, joined, render, render_across, rounded, save

DOCS = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PRINTED_DIGITS: dict[Hashable, int] = {"usage": 0, "lpips_alex": 3, ("imagenet", "rfid"): 3}
"""Digits behind the point in the paper's tables, or in one of them, where they are not two."""


def read_all(docs: Path = DOCS) -> dict[str, Results]:
    """Every table, by the name of its file; and what the paper reports."""
    found = {path.stem: Results(**read_object(path)) for path in sorted((docs / "results").glob("*.json"))}
    kept = {path.parent.name: load_comparison(path.parent) for path in (docs / "results").glob(f"*/{COMPARISON_FILE}")}
    found |= {name: from_comparison(kept[name]) for name in sorted(kept)}
    found |= summaries([kept[name] for name in sorted(kept)])
    return found | {f"{name}-published": results for name, results in published().items()}


def published() -> dict[str, Results]:
    """The paper's numbers, by recipe."""
    found = {}
    for recipe in RECIPES.values():
        if recipe.published is not None:
            values = recipe.published.values
            metrics = list(dict.fromkeys(name for row in values.values() for name in row))
            swept = [point for _, point in values if point is not None]
            rows: list[list[Value]] = [
                [KNOWN_METHODS[method].label, *([point] if swept else []), *(row.get(name) for name in metrics)]
                for (method, point), row in values.items()
            ]
            columns = ["method", *(["codebook size K"] if swept else []), *metrics]
            digits = {name: PRINTED_DIGITS.get((recipe.name, name), PRINTED_DIGITS.get(name, 2)) for name in metrics}
            about = recipe.published.setting
            found[recipe.name] = Results(recipe.published.source, "", about, columns, rows, digits, listed=False)
    return found


def from_comparison(comparison: Comparison) -> Results:
    """The results of `driftvq compare` or `reproduce`."""
    results = aggregate(comparison)
    sweep, rows = comparison.sweep, list[list[Value]]()
    for row in results.rows:
        if not (row.done or row.failed):
            continue
        values: list[Value] = []
        for name in results.columns:
            found = row.values.get(name)
            values.append(None if found is None else rounded(found.mean, found.spread))
        rows.append([row.method.label, *([row.point] if sweep else []), *values, len(row.done)])
    data, config = comparison.data, comparison.config
    facts = [f"{data['source']}, {data['train']:,} images to train on, n = {data['evaluation']}, {data['size']} px"]
    facts += [f"{config[name]:,} {name}" for name in ("steps",) if name in config]
    facts += [f"scale {comparison.scale}", f"seeds {', '.join(map(str, comparison.seeds))}"]
    facts += [f"usage over {cell.usage_over}" for cell in comparison.cells[:1] if cell.usage_over]
    columns = ["method", *([sweep.label] if sweep else []), *results.columns, "seeds"]
    return Results(comparison.title, comparison.command, "; ".join(facts) + ".", columns, rows)


def rendered(text: str, everything: Mapping[str, Results]) -> str:
    """A page with its tables as they should be."""

    def filled(found: re.Match[str]) -> str:
        name, *options = shlex.split(found[2])
        chosen = dict(option.split("=", 1) for option in options)
        columns = chosen.pop("columns", "").split(",") if "columns" in chosen else []
        names = [name, *(chosen.pop("with").split(",") if "with" in chosen else [])]
        results, *more = (everything[check_name("file of docs/results", one, everything)] for one in names)
        if "regret" in chosen:
            results = regret_table([results, *more], chosen.pop("regret").split(","))
        else:
            results = joined([results, *more])
        across, down = chosen.pop("across", None), chosen.pop("down", "method")
        wanted = {key: value.split("|") for key, value in chosen.items()}
        if across is None:
            table = render(results, wanted, columns)
        else:
            table = render_across(results, across, wanted, columns, down)
        return found[1] + table + found[3]

    return MARKED.sub(filled, text)


def results_page(everything: Mapping[str, Results]) -> str:
    """docs/results.md."""
    parts = [
        "# Results\n\nEvery table with the command that gives it, made by `make results` from `docs/results/*.json`. "
        "±: sample standard deviation over seeds.\n",
        "## Faces\n\n`FACES` is a folder with `train` and `val`: 8,000 and 2,000 faces of "
        "[UTKFace](https://susanqq.github.io/UTKFace/), cropped, 64×64 JPEG. They are for research and not ours to "
        "hand on; they are a sample, so with one of your own expect other digits.\n",
        "## Earlier forms\n\nThe tables that say so were measured with earlier forms of NSVQ and TransVQ than those "
        "that you install: *before the drift had a memory* it was fitted to the last batch alone; *before the drift "
        "asked for a need* every drift that was confirmed was followed. Peers are as they were. What the present form "
        "does is in the grid, in the regret and in the study.\n",
    ]
    for name, results in everything.items():
        if results.listed:
            parts.append(f"## {results.title}\n\n`{results.command}`\n\n{results.about}\n")
            parts.append(f"<!-- results: {name} -->\n<!-- end -->\n")
    return rendered("\n".join(parts), everything)


def outdated(docs: Path = DOCS, write: bool = False) -> list[Path]:
    """Pages and figures that are not what the data says; they are put right if asked."""
    everything, found = read_all(docs), []
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(docs.rglob("*.md"))}
    pages.setdefault(docs / "results.md", "")
    for path, text in pages.items():
        wanted = results_page(everything) if path == docs / "results.md" else rendered(text, everything)
        if wanted != text:
            found.append(path)
            if write:
                write_text(path, wanted)
    for figure in FIGURES:
        place, results = docs / figure.image, everything[figure.data]
        if drawn_from(place) != digest(results):
            found.append(place)
            if write:
                draw(figure, results, place)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is out of date")
    commands = parser.add_subparsers(dest="command_name")
    add = commands.add_parser("add", help="take over a comparison")
    take = commands.add_parser("take", help="take over a table from standard input")
    for one in (add, take):
        one.add_argument("name", help="of the file in docs/results")
        one.add_argument("--title")
        one.add_argument("--about", help="what a reader must know: data, n, seeds, scale")
    keeping = commands.add_parser("keep", help="keep the records of a comparison")
    keeping.add_argument("name", help="of the folder in docs/results")
    keeping.add_argument("--title")
    for one in (add, keeping):
        one.add_argument("folder", type=Path, help="of the comparison")
    take.add_argument("--command", required=True, help="that printed it")
    args = parser.parse_args()
    if args.command_name == "keep":
        keep(args.folder, DOCS / "results" / args.name, args.title)
    elif args.command_name is not None:
        if args.command_name == "take":
            new = from_text(sys.stdin.read(), args.name, args.command, "")
        else:
            new = from_comparison(load_comparison(args.folder))
        changes = {name: getattr(args, name) for name in ("title", "about") if getattr(args, name) is not None}
        save(Results(**{**asdict(new), **changes}), DOCS / "results" / f"{args.name}.json")
    found = outdated(write=not args.check)
    print("\n".join(str(path.relative_to(DOCS.parent)) for path in found) or "everything is up to date")
    if args.check and found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
