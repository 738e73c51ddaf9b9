"""``driftvq report``: the page of a comparison or a run, from its results on disk."""

import argparse
import sys
from pathlib import Path

from driftvq.cli.arguments import arg, say

EXAMPLES = """examples:
  driftvq report runs/a                         build runs/a/report.html, results.json and results.csv
  driftvq report runs/a runs/b -o both.html     two comparisons side by side
  driftvq report runs/a --format latex          print the table to paste into a paper

The page is one file that opens from disk without a network.
"""
ARGUMENTS = (
    arg("folders", nargs="+", type=Path, metavar="FOLDER", help="of a comparison or a run; several: side by side"),
    arg("-o", "--out", type=Path, metavar="FILE",
        help="the page (default: report.html in the folder; for several folders, in the current one)"),
    arg("--format", metavar="NAME", help="print the table instead: markdown, csv, json or latex"),
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Write the page and the machine-readable results, or print the table."""
    from driftvq.report import load_results, results_table, write_report, write_results

    if args.format is not None:
        if len(args.folders) > 1 or args.out is not None:
            raise ValueError("--format prints the table of one folder; received several, or --out as well")
        sys.stdout.write(results_table(load_results(args.folders[0]), args.format))
        return
    if args.out is None and len(args.folders) == 1:
        write_results(args.folders[0])
    path = write_report(args.folders, args.out)
    say(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB); open it in a browser")
    sys.stdout.write(f"{path}\n")
