"""Images to tokens, from the beginning or where an interrupted encoding goes on."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from driftvq.data import BadImageError, ImageBatch, ImageSource, eval_batches
from driftvq.models.pretrained import model_hash
from driftvq.models.running import Room, encode_pixels, find_room, repeatable, too_small
from driftvq.models.vqvae import VQVAE
from driftvq.tokens.format import NAMES, SKIPPED, TokenIndex, TokenModel, check_same, finished, read_index, read_names
from driftvq.tokens.reader import Tokens, open_tokens
from driftvq.tokens.writer import TokenWriter

Progress = Callable[[int], object]
Listener = Progress | None


def nobody(count: int) -> None:
    """Nobody wants to know the progress."""


def find_rest(source: ImageSource, folder: Path) -> tuple[int, frozenset[str]]:
    """The number of the first image after the last one written, and the names that are known to be unreadable."""
    # A batch may report unreadable images that come after its own, so the last name written says where to go on.
    skipped = frozenset(read_names(folder / SKIPPED) if (folder / SKIPPED).exists() else ())
    start = 0
    for written in read_names(folder / NAMES):
        while start < len(source) and source.name(start) != written and source.name(start) in skipped:
            start += 1
        if start == len(source) or source.name(start) != written:
            found = repr(source.name(start)) if start < len(source) else "no more images"
            raise ValueError(f"the images are not those of {folder}: expected {written!r}, found {found}")
        start += 1
    while start < len(source) and source.name(start) in skipped:
        start += 1
    return start, skipped


def encode_images(
    model: VQVAE, batches: Iterable[ImageBatch], out: str | Path, *, settings: dict[str, Any] | None = None,
    overwrite: bool = False, strict: bool = False, progress: Listener = None,
) -> Tokens:  # fmt: skip
    """Write the tokens of images, e.g. of :func:`driftvq.data.eval_batches`; memory does not grow with their number.

    ``settings`` are JSON values to keep in the index; ``overwrite`` replaces an existing token folder; an image too
    small for the model is skipped, or an error if ``strict``; ``progress`` is told how many images were dealt with
    since the last call, and first, before any work, how many earlier.
    """
    with TokenWriter(out, token_model(model), settings, overwrite=overwrite) as writer:
        _encode(model, batches, writer, strict, find_room(model), progress or nobody)
        return open_tokens(writer.finish())


def encode_source(
    model: VQVAE, source: ImageSource, out: str | Path, *, size: int | None = None, batch_size: int = 1,
    workers: int = 0, strict: bool = False, settings: dict[str, Any] | None = None, overwrite: bool = False,
    resume: bool = False, room: Room | None = None, progress: Listener = None,
) -> Tokens:  # fmt: skip
    """Write the tokens of all images of a source; can be interrupted and resumed.

    Beside what :func:`encode_images` and :func:`driftvq.data.eval_batches` take, ``resume`` goes on with an interrupted
    run, which must have had the same model, settings, size and batch size; one that is complete is left as it is.
    Images larger than the ``room`` (see :func:`driftvq.models.running.find_room`) are skipped.
    """
    settings = {**(settings or {}), "size": size, "batch_size": batch_size, "images_found": len(source)}
    if resume and not overwrite and finished(Path(out)):
        check_same(Path(out), read_index(Path(out)), TokenIndex(token_model(model), settings))
        find_rest(source, Path(out))  # refuses others
        return open_tokens(out)
    with TokenWriter(out, token_model(model), settings, overwrite=overwrite, resume=resume) as writer:
        if not writer.index.complete:  # else it was killed just before the folder got its name
            start, known = find_rest(source, writer.folder)
            if start < len(source):
                room = room or find_room(model, workers)
                limits: dict[str, Any] = {"strict": strict, "max_pixels": room.image, "batch_pixels": room.at_once}
                limits |= {"batch_size": batch_size, "workers": workers}
                with eval_batches(source, size=size, start=start, **limits) as batches:
                    (progress or nobody)(start)
                    told = (b._replace(skipped=[x for x in b.skipped if x[0] not in known]) for b in batches)
                    _encode(model, told, writer, strict, room, progress or nobody)
        return open_tokens(writer.finish())


def _encode(
    model: VQVAE, batches: Iterable[ImageBatch], writer: TokenWriter, strict: bool, room: Room, progress: Progress
) -> None:
    with repeatable():
        for images, names, skipped in batches:
            size, done = (images.shape[2], images.shape[3]), len(names) + len(skipped)
            if (reason := too_small(images, model)) is None:
                writer.write(encode_pixels(model, images, room).cpu().numpy(), names, size, skipped)
            elif strict:
                raise BadImageError(f"cannot encode {names[0]}: {reason}")
            else:
                writer.write(np.empty(0), [], size, [*skipped, *((name, reason) for name in names)])
            progress(done)


def token_model(model: VQVAE) -> TokenModel:
    """What a token folder says of a model; an error for one without tokens."""
    if (quantizer := model.quantizer) is None:
        raise ValueError("this model is a plain autoencoder (quantizer 'none'): it has no tokens")
    return TokenModel(model_hash(model), quantizer.codebook_size, model.downscale, quantizer.indices_per_position)
