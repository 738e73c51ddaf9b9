"""Tokens to images."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from driftvq.data.images import SUFFIXES, to_uint8, write_image
from driftvq.models.vqvae import VQVAE
from driftvq.tokens.arrays import check_range
from driftvq.tokens.coding import counter, repeatable, token_model
from driftvq.tokens.filenames import place_image
from driftvq.tokens.pixel_limit import pixel_limit
from driftvq.tokens.places import partial_folder, taken
from driftvq.tokens.progress import Progress
from driftvq.tokens.store import Tokens, open_tokens

RENAMED, SKIPPED = "renamed.txt", "skipped.txt"


def decode_tokens(
    model: VQVAE,
    tokens: Tokens | str | Path,
    out: str | Path,
    *,
    max_pixels: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the images of tokens as PNG files; the folder appears when it is complete.

    Args:
        model: that made the tokens; others are refused.
        tokens: or their folder.
        out: folder to make. Images keep the folders of their names, see :func:`driftvq.tokens.filenames.place_image`.
        max_pixels: of images that are decoded at once; larger ones are left out and listed in ``skipped.txt``. None
            takes what the free memory allows, see :mod:`driftvq.tokens.pixel_limit`.
        progress: see :data:`driftvq.tokens.progress.Progress`.

    Returns:
        How many images could not have their plain name; ``renamed.txt`` lists them as JSON lines of name and file.
    """
    tokens = tokens if isinstance(tokens, Tokens) else open_tokens(tokens)
    check_model(tokens, model)
    out = Path(out)
    folder = _new_folder(out)
    try:
        renamed = _decode(model, tokens, folder, max_pixels or pixel_limit(model), counter(progress))
        if out.is_dir():
            out.rmdir()  # it is empty, and not every system renames over a folder
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return renamed


def check_model(tokens: Tokens, model: VQVAE) -> None:
    """Tokens mean something to the model that made them, and to no other."""
    found, ours = tokens.index.model, token_model(model)
    if found.model_hash != ours.model_hash:
        raise ValueError(
            f"{tokens.folder} holds tokens of another model: made by {found.model_hash}, "
            f"this model is {ours.model_hash}"
        )
    if found != ours:
        raise ValueError(f"{tokens.folder} does not fit its model: it says {found}, the model {ours}")


def _decode(model: VQVAE, tokens: Tokens, folder: Path, max_pixels: int, count: Callable[[int], None]) -> int:
    device = next(model.parameters()).device
    names, renamed = tokens.names(), 0
    for listing in (RENAMED, SKIPPED):
        (folder / listing).touch()  # before a folder of an image's name can take the place
    with repeatable():
        for rows in tokens.batches():
            height, width = _common_size(tokens, rows)
            at_once = max_pixels // (height * width)
            if not at_once:
                reason = f"{width} x {height} is more than {max_pixels:,} pixels, the limit here"
                for name in _take(names, len(rows)):
                    _note(folder / SKIPPED, f"{json.dumps(name)}\t{reason}")
            for piece in _pieces(rows, at_once):
                images = _decode_batch(model, tokens, piece, (height, width), device)
                for image, name in zip(images, _take(names, len(piece)), strict=True):
                    path = place_image(folder, name, SUFFIXES)
                    write_image(path, image.permute(1, 2, 0).numpy())
                    renamed += _note_renamed(folder, name, path)
            count(len(rows))
    next(names, None)  # raises if there are more
    for listing in (RENAMED, SKIPPED):
        if not (folder / listing).stat().st_size:
            (folder / listing).unlink()
    return renamed


def _pieces(rows: range, size: int) -> Iterator[range]:
    """The batch as it was encoded, if the memory holds it; none without any size."""
    for start in range(rows.start, rows.stop if size else rows.start, size or 1):
        yield range(start, min(start + size, rows.stop))


def _common_size(tokens: Tokens, rows: range) -> tuple[int, int]:
    sizes = tokens.sizes[rows.start : rows.stop]
    if np.any(sizes != sizes[0]):
        raise ValueError(f"{tokens.folder} is damaged: images {rows.start} to {rows.stop - 1} must have one size")
    return int(sizes[0, 0]), int(sizes[0, 1])


def _decode_batch(model: VQVAE, tokens: Tokens, rows: range, size: tuple[int, int], device: torch.device) -> Tensor:
    indices = np.stack([tokens[number] for number in rows])
    check_range(indices, tokens.index.model.codebook_size)
    return to_uint8(model.decode(torch.from_numpy(indices.astype(np.int64)).to(device), size)).cpu()


def _take(names: Iterator[str], count: int) -> list[str]:
    return [name for _, name in zip(range(count), names, strict=False)]


def _note_renamed(folder: Path, name: str, path: Path) -> int:
    """List an image whose file is not its name with the suffix ``.png``; 1 if so."""
    file = path.relative_to(folder).as_posix()
    stem, _, suffix = name.rpartition(".")
    if file == f"{stem if f'.{suffix}'.lower() in SUFFIXES else name}.png":
        return 0
    _note(folder / RENAMED, json.dumps([name, file]))
    return 1


def _note(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _new_folder(out: Path) -> Path:
    """A folder to write to until it is complete; an error if something is there already."""
    folder = partial_folder(out)
    if taken(out):
        raise ValueError(f"{out} exists and is not an empty folder; choose another output")
    if folder.exists():
        raise ValueError(f"{folder} is left from a run that was killed; remove it or choose another output")
    folder.mkdir(parents=True)
    return folder
