"""Hostile trials: every test that is marked as one, with how often it tried and how often that held.

python benchmarks/reliability.py                          # all of them, an hour and a half (`make reliability`)
python benchmarks/reliability.py tests/test_fuzzing.py -k tar --seconds 60

What was run replaces its rows of docs/results/reliability.json; docs/reliability.md is written from it.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from results import DOCS, outdated, read_all
from tables import Results, Value, save

NAME, COMMAND = "reliability", "make reliability"
COLUMNS = ["what", "tried", "held", "seconds"]


def run_trials(tests: list[str], chosen: str, seconds: float, seed: int) -> tuple[list[list[Value]], bool]:
    """One row for each kind of trial, and whether all tests passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [*tests, "-m", "trial", "-k", chosen, f"--trial-seconds={seconds}", f"--trial-seed={seed}"]
        done = subprocess.run([sys.executable, "-m", "pytest", *words, f"--junitxml={report}", "-q"], check=False)
        if not report.is_file():
            sys.exit(done.returncode)
        return count(report), done.returncode == 0


def count(report: Path) -> list[list[Value]]:
    """What the tests of each kind counted, and their time."""
    kinds: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found = {each.get("name"): each.get("value") for each in case.iter("property")}
        if "trial" in found:
            row = kinds.setdefault(str(found["trial"]), [0, 0, 0])
            for place, value in enumerate((found["tried"], found["held"], case.get("time"))):
                row[place] += float(value or 0)
    return [[kind, *(round(value) for value in row)] for kind, row in sorted(kinds.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders; default: all")
    parser.add_argument("-k", default="", help="names of tests, as pytest's")
    parser.add_argument("--seconds", type=float, default=600, help="of a processor, for each fuzzer (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="the fuzzers' first; another one makes other changes")
    args = parser.parse_args()
    rows, passed = run_trials(args.tests, args.k, args.seconds, args.seed)
    known = read_all().get(NAME)
    new = {row[0] for row in rows}
    kept = [row for row in known.rows if row[0] not in new] if known else []
    about = "On one thread. A fuzzer runs for so many seconds of a processor; the seconds here are those that went by."
    merged: list[list[Value]] = sorted([*kept, *rows], key=lambda row: str(row[0]))
    save(Results("Hostile trials", COMMAND, about, COLUMNS, merged, listed=False), DOCS / "results" / f"{NAME}.json")
    outdated(write=True)
    for row in rows:
        print(*row, sep="\t")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
