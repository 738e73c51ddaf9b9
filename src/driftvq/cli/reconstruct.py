"""``driftvq reconstruct``: images as a model gives them back."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftvq.cli.arguments import RUNNING, arg, find_run, say
from driftvq.names import STARTER
from driftvq.records.runs import WEIGHTS_FILE

GAP = 4  # white pixels between an original and its reconstruction

EXAMPLES = """examples:
  driftvq reconstruct photo.jpg                        by the small tokenizer that comes with driftvq
  driftvq reconstruct runs/x photo.jpg                 writes ./photo-reconstructed.png, the original at the left
  driftvq reconstruct runs/x *.jpg -o out --alone      the reconstructions alone

Nothing is overwritten.
"""
ARGUMENTS = (
    arg("model", nargs="?", metavar="MODEL",
        help=f"a run, a saved model's folder or a hub id (default: {STARTER}, which comes with driftvq)"),
    arg("images", type=Path, nargs="+", metavar="IMAGE", help="image files"),
    arg("-o", "--out", type=Path, metavar="OUT", help="folder, or a .png file for one image (default: current folder)"),
    arg("--alone", action="store_true", help="without the original at the left"),
    *RUNNING,
)  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Reconstruct images and print how near they are."""
    choose_model(args)
    check_images(args.images)
    from driftvq.data.folder import open_files

    images = open_files(args.images)
    names = [images.name(index) for index in range(len(images))]
    places = dict(zip(names, output_paths(args.images, args.out), strict=True))

    import torch

    from driftvq.data import eval_batches, write_image
    from driftvq.metrics import psnr
    from driftvq.models.running import find_room, load_model, reconstructions

    model, _, batch_size = load_model(args.model, args.device, args.batch_size)
    room = find_room(model, max_pixels=args.max_pixels)
    limits: dict[str, Any] = {"max_pixels": room.image, "batch_pixels": room.at_once}
    ratios, bad = list[float](), list[str]()
    with eval_batches(images, size=args.size, batch_size=batch_size, **limits) as batches:
        for batch in reconstructions(model, batches, room):
            for name, reason in batch.skipped:
                bad.append(name)
                say(f"cannot read {name}: {reason}")
            found = psnr(batch.originals, batch.images.cpu(), data_range=255).tolist() if batch.names else []
            for name, original, image, ratio in zip(batch.names, batch.originals, batch.images, found, strict=True):
                gap = original.new_full((3, original.shape[1], GAP), 255)
                beside = [image.cpu()] if args.alone else [original, gap, image.cpu()]
                places[name].parent.mkdir(parents=True, exist_ok=True)
                write_image(places[name], torch.cat(beside, dim=2).permute(1, 2, 0).numpy())
                height, width = image.shape[1:]
                place = os.fsencode(places[name]).decode("utf-8", "backslashreplace")
                sys.stdout.write(f"{name}  {width}×{height}  PSNR {ratio:.2f} dB  {place}\n")
            ratios += found
    if len(ratios) > 1:
        sys.stdout.write(f"mean of {len(ratios)} images: PSNR {sum(ratios) / len(ratios):.2f} dB\n")
    if bad:
        raise ValueError(f"{len(bad)} of {len(args.images)} images could not be read, the first: {bad[0]}")


def choose_model(args: argparse.Namespace) -> None:
    """Without a model, or with an image at its place, the one that comes with driftvq."""
    from driftvq.data.images import is_image_name

    first = args.model
    if first is not None and (Path(first).is_file() or (is_image_name(first) and not Path(first).exists())):
        args.model, args.images = None, [Path(first), *args.images]
    if args.model is None:
        args.model = STARTER
        say(f"model: {STARTER}, a small tokenizer that comes with driftvq; name your own before the images")


def check_images(images: Sequence[Path]) -> None:
    """Every named image must be a file."""
    for path in images:
        if path.is_dir() and (find_run(str(path)) or (path / WEIGHTS_FILE).is_file()):
            raise ValueError(f"{path} is a model; name the images behind it: driftvq reconstruct {path} IMAGE")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name its images, or use `driftvq encode` and `driftvq decode`")
        if not path.exists():
            raise ValueError(f"no such image: {path}")


def output_paths(images: Sequence[Path], out: Path | None) -> list[Path]:
    """Where reconstructions go; an error if a file is there already or two images would share one.

    ``photo.jpg`` becomes ``photo-reconstructed.png`` in the folder ``out``, which for one image may be a .png file.
    """
    if out is not None and out.suffix.lower() == ".png" and not out.is_dir():
        if len(images) > 1:
            raise ValueError(f"{len(images)} images need a folder as output, got the file {out}")
        paths = [out]
    else:
        from driftvq.data.images import is_image_name

        if out is not None and is_image_name(out.name) and not out.is_dir():
            raise ValueError(f"the output must be a folder or a .png file, got {out}")
        stems = [image.stem if is_image_name(image.name) else image.name for image in images]
        paths = [(out or Path()) / f"{stem}-reconstructed.png" for stem in stems]
    for number, path in enumerate(paths):
        if path.exists():
            raise ValueError(f"{path} exists and is not overwritten; move it, or choose another output with -o")
        if path in paths[:number]:
            other = images[paths.index(path)]
            raise ValueError(f"{other} and {images[number]} would both become {path}; reconstruct them one by one")
    return paths
