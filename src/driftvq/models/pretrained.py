"""Saved models: a folder of config.json, model.safetensors and a model card. Nothing in it is ever executed."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from driftvq.files import make_folder, read_object, replacing, write_text
from driftvq.models.model_config import ModelConfig
from driftvq.models.vqvae import VQVAE, count_parameters
from driftvq.names import needed, shortened
from driftvq.quantizers.codebooks.start import KMeansStart
from driftvq.records.runs import WEIGHTS_FILE


def model_hash(model: VQVAE) -> str:
    """The sha256 of a model's config and of every tensor that ``encode`` or ``decode`` may depend on, as hex.

    Names, precisions, shapes and bits count; device, memory layout and train or eval mode do not. Left out are the
    quantizer's buffers that its parts declare as ``training_state``, so a forward pass in training mode that moves no
    weight and no code leaves the hash alone.
    """
    digest = hashlib.sha256(json.dumps(model.current_config.to_dict(), sort_keys=True).encode())
    ignored = training_state(model)
    for name, tensor in sorted(model.state_dict().items()):
        if name not in ignored:
            digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def training_state(model: nn.Module) -> set[str]:
    """Names, as in the state dict, of the tensors that say how training goes on and that evaluation does not see."""
    parts = {name: getattr(module, "training_state", ()) for name, module in model.named_modules()}
    return {f"{prefix}.{name}".removeprefix(".") for prefix, names in parts.items() for name in names}


def model_card(model: VQVAE, card: Mapping[str, Any] | None = None) -> str:
    """Markdown that says what a model is, how to load it, and what the caller knows about it.

    ``card`` is what to add, such as metrics or the data; a mapping inside becomes a table of its own.
    """
    config, quantizer, square = model.current_config.to_dict(), model.quantizer, f"{model.downscale}×{model.downscale}"
    if quantizer is None:
        codes = "no codebook"
        what = f"A plain autoencoder: one latent of {model.config.code_dim} numbers per {square} pixels."
        use = "images = model.reconstruct(images)  # float, b 3 h w, in [-1, 1]"
    else:
        codes, count = f"{quantizer.codebook_size} codes", quantizer.indices_per_position or 1
        indices = "one index" if count == 1 else f"{count} indices"
        what = f"A VQ-VAE that turns each {square} pixels of an image into {indices}, and back."
        use = "indices = model.encode(images)  # images: float, b 3 h w, in [-1, 1]\nimages = model.decode(indices)"
    title = f"Image tokenizer: {config['network']} network, {config['quantizer']}, {codes}"
    what += f"\n{count_parameters(model)['total']:,} parameters. Images are RGB in [-1, 1]."
    tables = "\n".join([*_table(config), *results_section(card or {})])
    text = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return text.format(title=title, what=what, use=use, tables=tables)


def results_section(card: Mapping[str, Any]) -> list[str]:
    """What the caller knows: single values in one table, each mapping in a table under its name."""
    plain = {name: value for name, value in card.items() if not isinstance(value, Mapping)}
    lines = ["", "## Results", "", *_table(plain)] if plain else []
    for name, value in card.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"## {_cell(name).capitalize()}", "", *_table(value)]
    return lines


def _table(values: Mapping[str, Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, value in values.items():
        yield f"| {_cell(name)} | {_cell(f'{value:.4g}' if isinstance(value, float) else value)} |"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


Card = Mapping[str, Any]  # what a model card shall say beside the config, such as metrics or the data
CONFIG, WEIGHTS, CARD = "config.json", WEIGHTS_FILE, "README.md"
FORMAT_VERSION = 1
MAX_CONFIG_BYTES = 2**20


def save_pretrained(model: VQVAE, folder: str | Path, *, card: Mapping[str, Any] | None = None) -> Path:
    """Save a model for :meth:`VQVAE.from_pretrained` and for sharing, in a folder that may hold other files.

    Each file is replaced in one step, the config last, and the weights carry the config they belong to, so a save that
    is interrupted leaves a model that loads or one that is refused. ``card``: see :func:`model_card`.
    """
    folder = Path(folder)
    make_folder(folder)
    values = model.current_config.to_dict()
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    metadata = {"format": "pt", "config": json.dumps(values, sort_keys=True)}
    save = _safetensors().torch.save_file
    write_text(folder / CARD, model_card(model, card))
    with replacing(folder / WEIGHTS) as temporary:
        save(tensors, temporary, metadata)
    write_text(folder / CONFIG, json.dumps({"format_version": FORMAT_VERSION, "model": values}, indent=2) + "\n")
    return folder


def load_pretrained(folder: Path, map_location: str | torch.device = "cpu") -> VQVAE:
    """Load a model from a folder that :func:`save_pretrained` made, in evaluation mode."""
    config = read_config(folder / CONFIG)
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has a {CONFIG} but no {WEIGHTS}")
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(weights, framework="pt") as file:
            saved = (file.metadata() or {}).get("config")
            if saved is not None and saved != json.dumps(config.to_dict(), sort_keys=True):
                cause = "a save was interrupted, or a file was changed"
                raise ValueError(f"{CONFIG} and {WEIGHTS} in {folder} are not of one model: {cause}")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
        _check_shapes(shapes, config, weights)
        # Copied out of the file, whose tensors lie at odd addresses: matrix products round by the alignment of memory.
        tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(weights).items()}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights} is damaged or not a safetensors file: {error}") from error
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's numbers alone
        model = VQVAE(config)
    for name, expected in model.state_dict().items():
        got = tensors[name].dtype
        if got != expected.dtype and not (got.is_floating_point and expected.is_floating_point()):
            raise ValueError(f"{weights} does not fit its {CONFIG}: {name} is {got}, expected {expected.dtype}")
    model.load_state_dict(tensors, assign=True)  # in the precision they were saved in
    return model.to(map_location).eval()


def read_config(path: Path) -> ModelConfig:
    """The config of a saved model, checked."""
    if not path.is_file():
        raise ValueError(f"no {path.name} in {path.parent}")
    values = read_object(path, MAX_CONFIG_BYTES)
    if "model" not in values:
        raise ValueError(f"{path} is not the config of a driftvq model: it has no 'model'")
    if values.get("format_version") != FORMAT_VERSION:
        got = shortened(values.get("format_version"))
        raise ValueError(f"{path} has format_version {got}; this driftvq reads {FORMAT_VERSION}")
    try:
        return ModelConfig.from_dict(values["model"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def find_folder(path: str | Path) -> Path | None:
    """The saved model at a path, itself or the ``model`` of a run's folder; None if there is nothing at the path."""
    path = Path(path)
    if not path.exists():
        return None
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    raise ValueError(f"{path} is no saved model: there is neither a {CONFIG} nor a model/{CONFIG} in it")


def _check_shapes(found: Mapping[str, tuple[int, ...]], config: ModelConfig, weights: Path) -> None:
    """Compare with an unallocated model, so that a wrong config costs no memory."""
    try:
        with torch.device("meta"):
            model = VQVAE(config)
    except ValueError as error:
        raise ValueError(f"{weights.parent / CONFIG}: {error}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    starts = {f"{name}.pending": start for name, start in model.named_modules() if isinstance(start, KMeansStart)}
    unknown = found.keys() - expected.keys() - starts.keys()
    for names, what in ((expected.keys() - found.keys(), "lacks"), (unknown, "has unknown")):
        if names:
            raise ValueError(f"{weights} does not fit its {CONFIG}: it {what} {', '.join(sorted(names)[:3])}")
    for name in found.keys() & starts.keys():  # there while a k-means start gathers latents, any number of them
        expected[name] = (min(sum(found[name][:1]), starts[name].needed), starts[name].pending.shape[1])
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"{weights} does not fit its {CONFIG}: {name} is {found[name]}, expected {shape}")


def _safetensors() -> Any:
    needed("safetensors.torch", "saved models need safetensors")
    return import_module("safetensors")
