"""The code blocks of the documentation: found, and run as a reader would."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"(?:<!-- not run: ([^\n]+?) -->\n)?^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block; one with `<!-- not run: why -->` on the line before is compiled alone."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start(4)].count("\n"), found[3].strip(), textwrap.dedent(found[4]), found[1])
        for found in FENCE.finditer(text)
    ]


def run(page: Path) -> dict[str, Any]:
    """Run a page's Python from top to bottom; what its blocks leave behind."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            # Empty lines in front: an error names the line of the page.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            if block.not_run is None:
                exec(code, names)
    return names
