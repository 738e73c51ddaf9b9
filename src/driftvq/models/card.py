"""The model card: the README.md that goes with a saved model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driftvq.files import read_object
from driftvq.models.vqvae import VQVAE

FRONT = """---
library_name: driftvq
tags:
- driftvq
- image-tokenizer
- vector-quantization
- vq-vae
---
"""


def model_card(model: VQVAE, card: Mapping[str, Any] | None = None) -> str:
    """Markdown that says what a model is, how to load it, and what the caller knows about it.

    Args:
        model: the model.
        card: what to add, such as metrics or the data; a mapping inside becomes a table of its own.
    """
    config, quantizer = model.current_config.to_dict(), model.quantizer
    codes = "no codebook" if quantizer is None else f"{quantizer.codebook_size} codes"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        FRONT,
        f"# Image tokenizer: {config['network']} network, {config['quantizer']}, {codes}",
        "",
        _what(model),
        f"{parameters:,} parameters. Images are RGB in [-1, 1].",
        "",
        "## Use",
        "",
        "```python",
        "from driftvq.models import VQVAE",
        "",
        'model = VQVAE.from_pretrained("PATH_OR_HUB_ID")',
        *([] if quantizer is None else ["indices = model.encode(images)  # images: float, b 3 h w, in [-1, 1]"]),
        *([] if quantizer is None else ["images = model.decode(indices)"]),
        *(["images = model.reconstruct(images)  # float, b 3 h w, in [-1, 1]"] if quantizer is None else []),
        "```",
        "",
        "## Config",
        "",
        *_table(config),
        *results_section(card or {}),
        "",
        "## Licence",
        "",
        "Not stated yet. Whoever shares this model names its licence here, with regard to the images it learned from.",
    ]
    return "\n".join(lines) + "\n"


def results_section(card: Mapping[str, Any]) -> list[str]:
    """What the caller knows: single values in one table, each mapping in a table under its name."""
    plain = {name: value for name, value in card.items() if not isinstance(value, Mapping)}
    lines = ["", "## Results", "", *_table(plain)] if plain else []
    for name, value in card.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"## {_cell(name).capitalize()}", "", *_table(value)]
    return lines


def read_results(run: Path) -> dict[str, Any]:
    """The numbers that ``driftvq evaluate`` left in a run's folder, if any."""
    path = run / "evaluation.json"
    if not path.is_file():
        return {}
    found = read_object(path)
    values = found.get("values")
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no evaluation: it has no 'values'")
    return {**values, **({"images": found["n"]} if "n" in found else {})}


def add_results(card: str, results: Mapping[str, Any]) -> str:
    """A card with a section of results before its licence, unless there are none or it has one."""
    if not results or "\n## Results" in card:
        return card
    section = "\n".join(results_section(results)).strip() + "\n\n"
    before, heading, after = card.partition("## Licence")
    return before + section + heading + after if heading else f"{card.rstrip()}\n\n{section}"


def _what(model: VQVAE) -> str:
    if model.quantizer is None:
        return f"A plain autoencoder: one latent of {model.config.code_dim} numbers per {_square(model)} pixels."
    count = model.quantizer.indices_per_position or 1
    indices = "one index" if count == 1 else f"{count} indices"
    return f"A VQ-VAE that turns each {_square(model)} pixels of an image into {indices}, and back."


def _square(model: VQVAE) -> str:
    return f"{model.downscale}×{model.downscale}"


def _table(values: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, value in values.items():
        yield f"| {_cell(name)} | {_cell(f'{value:.4g}' if isinstance(value, float) else value)} |"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
