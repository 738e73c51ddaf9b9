"""Tokens to images, each of which gets a file of its own below the output folder."""

import hashlib
import json
import shutil
from bisect import bisect_left
from contextlib import ExitStack
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch

from driftvq.data.images import SUFFIXES, write_image
from driftvq.models.running import Room, decode_pixels, find_room, repeatable
from driftvq.models.vqvae import VQVAE
from driftvq.tokens.encoding import Listener, Progress, nobody, token_model
from driftvq.tokens.format import partial_folder, taken
from driftvq.tokens.reader import Tokens, check_range, open_tokens

MAX_BYTES = 200  # a file name may have 255 bytes nearly everywhere; some are kept for a temporary name beside it
MAX_FOLDER_BYTES = 600  # of all folders of a name together; a whole path may have some 1,000 bytes nearly everywhere


def safe_parts(name: str) -> list[str]:
    """The folders and the file of a name, without those that lead elsewhere (``/``, ``..``).

    >>> safe_parts("../../a/./b.jpg")
    ['a', 'b.jpg']
    """
    *folders, file = [part for part in map(_safe, name.split("/")) if part] or ["image"]
    lengths = list(accumulate(len(part.encode()) + 1 for part in folders))
    if lengths and lengths[-1] > MAX_FOLDER_BYTES:  # too long together: the first ones and a digest of all
        digest = hashlib.sha256("/".join(folders).encode()).hexdigest()[:16]
        kept = [part for part, length in zip(folders, lengths, strict=True) if length <= MAX_FOLDER_BYTES - 40]
        folders = [*kept, f"~{digest}"]
    return [*folders, file]


def place_image(root: Path, name: str, suffixes: frozenset[str]) -> Path:
    """A new path below ``root`` for the PNG of an image, whose folder exists afterwards.

    ``a/b.jpg`` goes to ``a/b.png``. If that is taken, it goes to ``a/b.jpg.png``, then ``a/b.jpg.2.png``, and so on, so
    the same names in the same order always get the same files. Of the endings, ``.png`` replaces the ``suffixes``.
    """
    *folders, file = safe_parts(name)
    folder = root
    for part in folders:
        folder = folder / part
        while folder.exists() and not folder.is_dir():  # an image has the name
            folder = folder.with_name(folder.name + "_")
        folder.mkdir(exist_ok=True)
    dot = file.rfind(".")
    stem = file[:dot] if dot > 0 and file[dot:].lower() in suffixes else file
    for name in (f"{stem}.png", f"{file}.png"):
        if not (folder / name).exists():
            return folder / name

    def is_free(number: int) -> bool:
        return not (folder / f"{file}.{number}.png").exists()

    end = 2  # found by doubling and halving, since thousands of images may share a name
    while not is_free(end):
        end *= 2
    first = end // 2 + 1
    return folder / f"{file}.{first + bisect_left(range(first, end), True, key=is_free)}.png"


def _safe(part: str) -> str:
    """A file name that every system accepts: no control characters, none that Windows reserves, not too long."""
    text = part.encode("utf-8", "replace").decode()
    text = "".join("_" if ord(char) < 32 or char in '<>:"|?*\\\x7f' else char for char in text).strip(" ").rstrip(". ")
    if len(text.encode()) > MAX_BYTES:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        ending = text[-10:] if "." in text[-10:] else ""
        text = text.encode()[: MAX_BYTES - 40].decode("utf-8", "ignore") + "~" + digest + ending
    return text


RENAMED, SKIPPED = "renamed.txt", "skipped.txt"


def decode_tokens(
    model: VQVAE, tokens: Tokens | str | Path, out: str | Path, *, room: Room | None = None, progress: Listener = None
) -> int:
    """Write the images of tokens as PNG files; the folder appears when it is complete.

    The model must be the one that made the tokens. Images keep the folders of their names, see
    :func:`driftvq.tokens.decoding.place_image`; those that the ``room`` (see :func:`driftvq.models.running.find_room`)
    does not hold are left out and listed in ``skipped.txt``. ``progress`` is told how many images were dealt with since
    the last call, first 0. Returns how many could not have their plain name; ``renamed.txt`` lists them as JSON lines.
    """
    tokens = tokens if isinstance(tokens, Tokens) else open_tokens(tokens)
    check_model(tokens, model)
    out = Path(out)
    folder = partial_folder(out)
    if taken(out):
        raise ValueError(f"{out} exists and is not an empty folder; choose another output")
    if folder.exists():
        raise ValueError(f"{folder} is left from a run that was killed; remove it or choose another output")
    folder.mkdir(parents=True)
    try:
        renamed = _decode(model, tokens, folder, room or find_room(model), progress or nobody)
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
        hashes = f"made by {found.model_hash}, this model is {ours.model_hash}"
        raise ValueError(f"{tokens.folder} holds tokens of another model: {hashes}")
    if found != ours:
        raise ValueError(f"{tokens.folder} does not fit its model: it says {found}, the model {ours}")


def _decode(model: VQVAE, tokens: Tokens, folder: Path, room: Room, progress: Progress) -> int:
    names, renamed = tokens.names(), 0
    listings = folder / RENAMED, folder / SKIPPED
    progress(0)
    with ExitStack() as stack:
        moved, skipped = (stack.enter_context(path.open("w", encoding="utf-8")) for path in listings)
        stack.enter_context(repeatable())
        for rows in tokens.batches():
            sizes = tokens.sizes[rows.start : rows.stop]
            if np.any(sizes != sizes[0]):
                places = f"{rows.start} to {rows.stop - 1}"
                raise ValueError(f"{tokens.folder} is damaged: images {places} must have one size")
            height, width = map(int, sizes[0])
            named = list(islice(names, len(rows)))
            if height * width > room.image:
                reason = f"{width} x {height} is more than {room.image:,} pixels, the limit here"
                skipped.writelines(f"{json.dumps(name)}\t{reason}\n" for name in named)
                progress(len(rows))
                continue
            at_once = max(1, room.at_once // (height * width))  # as it was encoded, if the memory holds it
            for start in range(0, len(rows), at_once):
                indices = np.stack([tokens[number] for number in rows[start : start + at_once]])
                check_range(indices, tokens.index.model.codebook_size)
                images = decode_pixels(model, torch.from_numpy(indices.astype(np.int64)), (height, width), room).cpu()
                for image, name in zip(images, named[start : start + at_once], strict=True):
                    path = place_image(folder, name, SUFFIXES)
                    write_image(path, image.permute(1, 2, 0).numpy())
                    file = path.relative_to(folder).as_posix()
                    stem, _, suffix = name.rpartition(".")
                    if file != f"{stem if f'.{suffix}'.lower() in SUFFIXES else name}.png":
                        moved.write(json.dumps([name, file]) + "\n")
                        renamed += 1
            progress(len(rows))
    next(names, None)  # raises if there are more
    for listing in listings:
        if not listing.stat().st_size:
            listing.unlink()
    return renamed
