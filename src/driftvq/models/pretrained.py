"""Saved models: a folder of config.json, model.safetensors and a model card. Nothing in it is ever executed."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from driftvq.files import make_folder, read_object, replacing, write_text
from driftvq.models.card import model_card
from driftvq.models.config import ModelConfig
from driftvq.models.vqvae import VQVAE
from driftvq.quantizers.codebooks.start import KMeansStart

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT_VERSION = 1
MAX_CONFIG_BYTES = 2**20
INSTALL = 'pip install "driftvq[tokenizer]"'


def save_pretrained(model: VQVAE, folder: str | Path, *, card: Mapping[str, Any] | None = None) -> Path:
    """Save a model for :meth:`VQVAE.from_pretrained` and for sharing.

    Each file is replaced in one step, the config last, and the weights carry the config they belong to, so a save that
    is interrupted leaves a model that loads or one that is refused.

    Args:
        model: to save.
        folder: made if need be; other files in it stay.
        card: what the model card shall say beside the config, e.g. metrics.

    Returns:
        The folder.
    """
    folder = Path(folder)
    make_folder(folder)
    values = model.current_config.to_dict()
    config = json.dumps({"format_version": FORMAT_VERSION, "model": values}, indent=2) + "\n"
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    metadata = {"format": "pt", "config": json.dumps(values, sort_keys=True)}
    save = _safetensors().torch.save_file
    write_text(folder / CARD, model_card(model, card))
    with replacing(folder / WEIGHTS) as temporary:
        save(tensors, temporary, metadata)
    write_text(folder / CONFIG, config)
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
            _check_metadata(file.metadata(), config, folder)
            names = list(file.keys())
            _check_shapes({name: tuple(file.get_slice(name).get_shape()) for name in names}, config, weights)
        # Copied out of the file, whose tensors lie at odd addresses: matrix products round by the alignment of memory.
        tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(weights).items()}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights} is damaged or not a safetensors file: {error}") from error
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's numbers alone
        model = VQVAE(config)
    _check_types(tensors, model, weights)
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
        got = values.get("format_version")
        raise ValueError(f"{path} has format_version {got!r}; this driftvq reads {FORMAT_VERSION}")
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


def _check_metadata(metadata: Mapping[str, str] | None, config: ModelConfig, folder: Path) -> None:
    saved = (metadata or {}).get("config")
    if saved is not None and saved != json.dumps(config.to_dict(), sort_keys=True):
        raise ValueError(
            f"{CONFIG} and {WEIGHTS} in {folder} are not of one model: a save was interrupted, or a file was changed"
        )


def _check_shapes(found: Mapping[str, tuple[int, ...]], config: ModelConfig, weights: Path) -> None:
    """Compare with an unallocated model, so that a wrong config costs no memory."""
    with torch.device("meta"):
        model = VQVAE(config)
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


def _check_types(tensors: Mapping[str, torch.Tensor], model: VQVAE, weights: Path) -> None:
    for name, expected in model.state_dict().items():
        got = tensors[name].dtype
        if got != expected.dtype and not (got.is_floating_point and expected.is_floating_point()):
            raise ValueError(f"{weights} does not fit its {CONFIG}: {name} is {got}, expected {expected.dtype}")


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ValueError(f"saved models need safetensors: {INSTALL}") from error
    return safetensors
