"""What the site has beyond the pages of docs/: the README as its home, the notebook, and the API reference."""

import ast
import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.hooks")
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/quickstart.ipynb": "quickstart.md",
}
"""Files outside of docs/ that are pages of the site."""
FILES = ("CITATION.cff", "LICENSE", "examples/audio_codec.py")
"""Files outside of docs/ that can be downloaded."""
API = {
    "quantizers": ("quantizers",),
    "adapters": ("quantizers.adapters", "quantizers.codec_adapters"),
    **{
        name: (name,)
        for name in ("functional", "models", "training", "data", "tokens", "metrics", "drift_meter", "report")
    },
}
"""Pages of the reference, and the modules of driftvq on each."""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(<code>)~?(?:[\w.]+\.)?(\w+)(</code>)")


class Doctests(griffe.Extension):
    """A worked example in a docstring is code, which Markdown would take for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence it."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    sections = {name: entries for entry in config.nav or [] for name, entries in entry.items()}
    table = (ROOT / "docs/quantizers/README.md").read_text(encoding="utf-8")
    order = dict.fromkeys(re.findall(r"\]\((\w+\.md)\)", table))
    sections["Quantizers"] += [f"quantizers/{name}" for name in order]
    sections["API"] += ["api/index.md", *(f"api/{name}.md" for name in API)]
    named = set(re.findall(r"[\w/]+\.md", json.dumps(config.nav)))
    sections["Guide"] += sorted({path.name for path in (ROOT / "docs").glob("*.md")} - named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies elsewhere."""
    for source, place in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=notebook_page(text) if "ipynb" in source else text))
    for source in FILES:
        files.append(File.generated(config, source, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "api/index.md", content=api_index()))
    for name, modules in API.items():
        parts = [f"# driftvq.{name}" if name in modules else f"# {name.capitalize()}"]
        files.append(
            File.generated(config, f"api/{name}.md", content="\n\n".join(parts + [f"::: driftvq.{m}" for m in modules]))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to the same place on the site as in the repository."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    origin = {place: source for source, place in PAGES.items()}
    uri = page.file.src_uri
    here = posixpath.dirname(origin.get(uri, f"docs/{uri}"))

    def there(found: re.Match[str]) -> str:
        if "://" in found[2] or uri.startswith("api/"):
            return found[0]
        target = posixpath.normpath(posixpath.join(here, found[2]))
        if not (ROOT / target).exists():
            LOG.warning("%s links to %s, which is not there", uri, target)
        return found[1] + posixpath.relpath(site_uri(target), posixpath.dirname(uri) or ".") + found[3]

    return LINK.sub(there, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings name objects by roles, which Markdown does not know."""
    return ROLE.sub(r"\1\2\3", html)


def site_uri(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("src/driftvq/"):
        return f"api/{path.split('/')[2]}.md"
    return PAGES.get(path, path.removeprefix("docs/"))


def api_index() -> str:
    """Where the parts of the library are described, with the first sentence of each."""
    lines = [
        "# API reference",
        "",
        "From the docstrings. All quantizers and adapters, `VQVAE`, `ModelConfig` and `DriftMeter` can be imported "
        "from `driftvq` itself.",
        "",
    ]
    lines += ["| module | what |", "|---|---|"]
    for name, modules in API.items():
        for module in modules:
            path = ROOT / "src/driftvq" / module.replace(".", "/")
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            lines.append(f"| [`driftvq.{module}`]({name}.md) | {about} |")
    return "\n".join(lines) + "\n"


def notebook_page(text: str) -> str:
    """A notebook as Markdown, with what its cells printed and drew."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """One output of a cell."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the cell drew" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    return "```text\n" + "".join(output.get("text") or data["text/plain"]) + "\n```"
