"""Mutation test of the heart: one small fault at a time in ``functional/`` and ``quantizers/``; does a test fail?

``python benchmarks/mutants.py --count 80 --seed 0`` (`make mutants`) draws the faults, one of each file in turn, tries
each in a copy of the sources against the tests of its module, and lists those that no test noticed. After each one it
writes docs/results/mutants.json, from which docs/reliability.md has its table.
"""

import argparse
import ast
import io
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401 - loaded once, before processes are made; driftvq is loaded in each of them
import pytest
import torch

ROOT = Path(__file__).parent.parent
ROOMS = ("functional", "quantizers")
LEFT_OUT = ("__init__.py", "triton_search.py")
"""Nothing to compute, and a kernel that only a GPU runs."""
CONTRACT = "tests/quantizers/test_contract.py"
TYPICAL = ("ns_vq", "ema_vq", "lfq", "residual_vq")
"""Quantizers that take part in it here: codes that follow, averages, a grid, several."""
NS_FORMS = " ".join(f"quantizers/ns_vq_{form}" for form in ("paper", "published", "delta_e", "sequel"))
TESTS = {
    "functional/blocks.py": "functional/search_ways functional/transport",
    "functional/gradients.py": "functional/gradients functional/losses functional/kernels",
    "functional/search.py": "functional/search functional/search_ways functional/scoring",
    "functional/soft.py": "functional/soft functional/noise",
    "quantizers/codebook.py": "quantizers/vq quantizers/start quantizers/growth",
    "quantizers/composite.py": "quantizers/residual_vq quantizers/grouped_vq",
    "quantizers/estimators.py": "quantizers/estimators quantizers/diveq quantizers/sf_diveq",
    "quantizers/finite.py": "quantizers/scales quantizers/lives",
    "quantizers/ns_vq_paper.py": f"{NS_FORMS} quantizers/scales",
    "quantizers/ema_vq.py": "quantizers/ema_vq quantizers/cosine_ema_vq",
    "quantizers/codebooks/base.py": "quantizers/codebooks/winners quantizers/ema_vq quantizers/following quantizers/vq",
    "quantizers/codebooks/features.py": "quantizers/codebooks/drift quantizers/trans_vq",
    "quantizers/codebooks/following.py": "quantizers/following quantizers/ns_vq",
    "quantizers/codebooks/growth.py": "quantizers/growth",
    "quantizers/codebooks/networks.py": "quantizers/trans_vq_paper quantizers/trans_vq_published quantizers/trans_vq",
    "quantizers/codebooks/parts.py": "quantizers/codebooks/drift quantizers/codebooks/winners",
    "quantizers/codebooks/start.py": "quantizers/start",
}
"""Where a module's tests have another name than it."""
SECONDS = 300
"""Of a processor; a run that takes longer is killed, which counts as noticed: a fault made it endless."""

OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Eq: "!=", ast.NotEq: "==", ast.And: "or", ast.Or: "and",
}  # fmt: skip
NAMES = {"sum": "mean", "mean": "sum", "min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin"}
NAMES |= {"minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A fault: what stands between two places of a file, and what is put there instead."""

    path: Path
    line: int
    begin: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT / 'src/driftvq')}:{self.line}: {self.old!r} → {self.new!r}"

    def source(self) -> str:
        """The file with the fault."""
        text = self.path.read_text(encoding="utf-8")
        return text[: self.begin] + self.new + text[self.end :]


class Finder(ast.NodeVisitor):
    """Every place of a file where a fault could be, but for types, texts, decorators and errors."""

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.found = path, path.read_text(encoding="utf-8"), list[Mutant]()
        lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))
        self.lines = lines
        self.visit(ast.parse(self.text))

    def _place(self, line: int, column: int) -> int:
        """A position in characters; ast counts bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno or 0, node.end_col_offset or 0)

    def _add(self, line: int, begin: int, end: int, new: str) -> None:
        self.found.append(Mutant(self.path, line, begin, end, self.text[begin:end], new))

    def _between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        new = OPERATORS.get(type(operator))
        if new is None:
            return
        begin, end = self._span(left)[1], self._span(right)[0]
        gap = self.text[begin:end]
        old = gap.strip(" \n()")
        if "#" not in gap and old:
            start = begin + gap.index(old)
            self._add(self.text.count("\n", 0, start) + 1, start, start + len(old), new)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("_", "extra_repr", "__repr__"):  # shapes for the compiler, and texts
            return
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        return

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_If(self, node: ast.If) -> None:
        begin, end = self._span(node.test)
        self._add(node.lineno, begin, end, f"not ({self.text[begin:end]})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._add(node.lineno, *self._span(node), "pass")
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._between(node.values[0], node.values[1], node.op)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._between(node.left, node.comparators[0], node.ops[0])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not):
            begin = self._span(node)[0]
            self._add(node.lineno, begin, begin + (1 if isinstance(node.op, ast.USub) else len("not ")), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add(node.lineno, *self._span(node), str(not value))
        elif isinstance(value, int):
            self._add(node.lineno, *self._span(node), str(value + 1))
        elif isinstance(value, float):
            self._add(node.lineno, *self._span(node), repr(value * 2 if value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            end, name = self._span(node.func)[1], node.func.attr
            if name in NAMES:
                self._add(node.end_lineno or 0, end - len(name), end, NAMES[name])
            elif name in ("detach", "clone") and not node.args:
                self._add(node.end_lineno or 0, end - len(f".{name}"), self._span(node)[1], "")
        for keyword in node.keywords:
            if keyword.arg in ("min", "max"):
                begin = self._span(keyword)[0]
                self._add(keyword.lineno, begin, begin + 3, NAMES[keyword.arg])
        self.generic_visit(node)


def all_mutants(parts: list[str]) -> list[Mutant]:
    """Every fault that could be tried, in files whose path contains one of the parts."""
    files = [path for room in ROOMS for path in sorted((ROOT / "src/driftvq" / room).rglob("*.py"))]
    chosen = [path for path in files if path.name not in LEFT_OUT and any(part in str(path) for part in parts)]
    return [mutant for path in chosen for mutant in Finder(path).found]


def tests_of(path: Path) -> list[str]:
    """Where a fault of this file should be noticed: the tests of its module, or of the quantizers it registers.

    A module without any is tested by the contract, of which the minutes that compilers take are left out.
    """
    name = path.relative_to(ROOT / "src/driftvq")
    registered = re.findall(r'@register\("(\w+)"\)', path.read_text(encoding="utf-8"))
    usual = " ".join(f"quantizers/{each}" for each in registered) or str(name.with_suffix(""))
    own = [Path("tests", test) for test in TESTS.get(str(name), usual).split()]
    files = [test.with_name(f"test_{test.name}.py") for test in own]
    if all((ROOT / test).exists() for test in files):
        return list(map(str, files))
    cases = " or ".join(f"{each}]" for each in TYPICAL)
    return [CONTRACT, "-k", f"not compile and not graph and ({cases})"]


def in_process(work: Callable[..., None], *words: Any) -> int | None:
    """Do it in a process of its own, which loads driftvq for itself; the exit code."""
    process = multiprocessing.get_context("fork").Process(target=work, args=words)
    process.start()
    process.join()
    return process.exitcode


def _run_tests(sources: str, tests: list[str]) -> None:
    """In a process of its own: exit code 0 if every test passes."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = f"{sources}{os.pathsep}{ROOT}"
    sys.path[:0] = [sources, str(ROOT)]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-W", "ignore", *tests])
    os._exit(int(code))


def is_noticed(mutant: Mutant, copy: Path) -> bool:
    """Whether a test fails with the fault."""
    place = copy / mutant.path.relative_to(ROOT / "src")
    place.write_text(mutant.source(), encoding="utf-8")
    code = in_process(_run_tests, str(copy), tests_of(mutant.path))
    shutil.copyfile(mutant.path, place)
    return code != 0


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A fault of every file, then a second one of each, and so on."""
    turns: Counter[Path] = Counter()
    in_turn: list[tuple[int, Mutant]] = []
    for mutant in random.Random(seed).sample(mutants, len(mutants)):
        in_turn.append((turns[mutant.path], mutant))
        turns[mutant.path] += 1
    return [mutant for _, mutant in sorted(in_turn, key=lambda each: each[0])[:count]]


def write_report(verdicts: list[tuple[Mutant, bool]], possible: int, command: str) -> None:
    """The rows of docs/results/mutants.json; in a process of its own, which may load driftvq."""
    from results import DOCS, outdated
    from tables import Results, Value, save

    folders: dict[str, list[int]] = {}
    for mutant, noticed in verdicts:
        for name in (f"{mutant.path.relative_to(ROOT / 'src/driftvq').parent}/", "all"):
            row = folders.setdefault(name, [0, 0])
            row[0], row[1] = row[0] + 1, row[1] + noticed
    rows: list[list[Value]] = [
        [name, *folders[name]] for name in sorted(folders, key=lambda name: (name == "all", name))
    ]
    files = len({mutant.path for mutant, _ in verdicts})
    about = f"In {files} files, one of each in turn, of {possible:,} possible faults; slow tests are left out."
    columns = ["folder", "faults", "noticed"]
    save(Results("Faults in the sources", command, about, columns, rows, listed=False), DOCS / "results/mutants.json")
    outdated(write=True)


def main() -> None:
    """Draw, try, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=80, help="faults to try; 0: list how many there could be")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="files whose path contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    mutants = all_mutants(args.only)
    drawn = draw(mutants, args.count, args.seed)
    command = f"python benchmarks/mutants.py --count {args.count} --seed {args.seed}"
    verdicts: list[tuple[Mutant, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for number, mutant in enumerate(drawn, start=1):
            started, noticed = time.monotonic(), is_noticed(mutant, copy)
            verdicts.append((mutant, noticed))
            word = "noticed " if noticed else "SURVIVED"
            print(f"{number:3} {word} {mutant}  ({time.monotonic() - started:.0f} s)", flush=True)
            if args.only == [""]:
                in_process(write_report, verdicts, len(mutants), command)
    survivors = [mutant for mutant, noticed in verdicts if not noticed]
    print(f"\n{len(drawn) - len(survivors)} of {len(drawn)} faults noticed, drawn from {len(mutants)} possible ones")
    for mutant in survivors:
        print(f"  {mutant}")


if __name__ == "__main__":
    main()
