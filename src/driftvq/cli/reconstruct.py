"""``driftvq reconstruct``: images as a model gives them back."""

import argparse
import sys
from pathlib import Path

from driftvq.cli.arguments import say, whole
from driftvq.cli.encode import add_running

EXAMPLES = """examples:
  driftvq reconstruct runs/x photo.jpg                 writes ./photo-reconstructed.png
  driftvq reconstruct runs/x *.jpg -o out --side-by-side

Nothing is overwritten.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq reconstruct``."""
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="a run, a saved model's folder or a hub id")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="OUT", help="folder, or a .png file for one image (default: current folder)"
    )
    parser.add_argument(
        "--size", type=whole(1), metavar="N", help="side of the centre square (default: each image as it is)"
    )
    parser.add_argument("--side-by-side", action="store_true", help="the original at the left of its reconstruction")
    add_running(parser)


def run(args: argparse.Namespace) -> None:
    """Reconstruct images and print how near they are."""
    from driftvq.tokens.reconstructing import check_images, output_paths

    check_images(args.images)
    places = dict(zip(map(str, args.images), output_paths(args.images, args.out), strict=True))

    from driftvq.data.images import write_image
    from driftvq.tokens.loading import load_model
    from driftvq.tokens.reconstructing import FileList, Reconstruction, reconstruct_images, side_by_side

    model, _, batch_size = load_model(args.model, args.device, args.batch_size)
    ratios, bad = [], []
    options = {"size": args.size, "batch_size": batch_size, "max_pixels": args.max_pixels}
    for result in reconstruct_images(model, FileList(args.images), **options):
        if not isinstance(result, Reconstruction):
            bad.append(result)
            say(f"cannot read {result[0]}: {result[1]}")
            continue
        path = places[result.name]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, side_by_side(result.original, result.image) if args.side_by_side else result.image)
        height, width = result.image.shape[:2]
        sys.stdout.write(f"{result.name}  {width}×{height}  PSNR {result.psnr:.2f} dB  {path}\n")
        ratios.append(result.psnr)
    if len(ratios) > 1:
        sys.stdout.write(f"mean of {len(ratios)} images: PSNR {sum(ratios) / len(ratios):.2f} dB\n")
    if bad:
        raise ValueError(f"{len(bad)} of {len(args.images)} images could not be read, the first: {bad[0][0]}")
