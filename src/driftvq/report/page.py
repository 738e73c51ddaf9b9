"""The report: one HTML file with everything in it."""

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from driftvq.files import write_text
from driftvq.records.comparisons import load_comparison
from driftvq.records.fields import finite
from driftvq.report.payload import comparison_payload
from driftvq.report.results import Results, aggregate
from driftvq.report.sentence import answer
from driftvq.report.tables import results_table

REPORT_FILE = "report.html"
SCRIPTS = ("dom.js", "state.js", "chart.js", "table.js", "training.js", "codes.js", "strips.js", "facts.js", "page.js")
"""In the order in which they are loaded."""

MAX_BYTES = 10_000_000
IMAGE_BYTES = 5_000_000
"""What the images of a page may take together."""


def write_report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> Path:
    """Build the report of one comparison, or of several side by side, from what is on disk.

    Args:
        folders: of one comparison or more.
        out: the file to write; by default ``report.html`` in the folder, or for several ``report.html`` here.

    Returns:
        The file written.
    """
    chosen = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not chosen:
        raise ValueError("a report needs at least one folder of a comparison; received none")
    if out is None:
        out = Path(chosen[0]) / REPORT_FILE if len(chosen) == 1 else Path(REPORT_FILE)
    text = render([aggregate(load_comparison(folder)) for folder in chosen])
    return write_text(Path(out), text)


def render(comparisons: Sequence[Results]) -> str:
    """The page of one comparison or several, under MAX_BYTES.

    The images are made smaller until the page fits.
    """
    budget = IMAGE_BYTES
    while True:
        text = _page(comparisons, budget)
        if len(text.encode("utf-8")) < MAX_BYTES or budget == 0:
            return text
        budget = budget // 2 if budget > 500_000 else 0


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or a line of JavaScript."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _page(comparisons: Sequence[Results], budget: int) -> str:
    payloads = [comparison_payload(results, budget // len(comparisons)) for results in comparisons]
    style, script = _asset("style.css"), "\n".join(_asset(name) for name in SCRIPTS)
    first = comparisons[0].comparison
    title = first.title if len(comparisons) == 1 else f"{len(comparisons)} comparisons side by side"
    parts = {
        "title": html.escape(f"{title} · driftvq"),
        "policy": f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "plain": "\n".join(_plain(results) for results in comparisons),
        "data": embed_json({"title": title, "comparisons": payloads}),
        "script": script,
    }
    pieces = _asset("page.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def _plain(results: Results) -> str:
    """What is shown without JavaScript."""
    return f"<p>{html.escape(str(answer(results)))}</p>\n<pre>{html.escape(results_table(results))}</pre>"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
