"""``driftvq encode``: images to tokens."""

import argparse
from pathlib import Path

from driftvq.cli.arguments import add_device, add_model, say, whole

EXAMPLES = """examples:
  driftvq encode runs/x photos/ -o tokens             each image at its own size
  driftvq encode runs/x photos/ -o tokens --size 256  the centre square of each, scaled to 256
  driftvq encode runs/x photos/ -o tokens --resume    go on after an interruption

docs/tokens.md says what is in the folder and how to read it with numpy alone.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``driftvq encode``."""
    parser.epilog = EXAMPLES
    add_model(parser)
    parser.add_argument(
        "images", metavar="IMAGES", help="a folder, a list (.txt, .lst), shards (.tar), hf:NAME or one image"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="TOKENS", help="token folder to make")
    parser.add_argument(
        "--size", type=whole(1), metavar="N", help="side of the centre square (default: each image as it is)"
    )
    add_running(parser)
    parser.add_argument(
        "--workers", type=whole(0), default=0, metavar="N", help="processes that read ahead (default: 0)"
    )
    parser.add_argument("--strict", action="store_true", help="stop at an unreadable image instead of skipping it")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing token folder")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run")


def add_running(parser: argparse.ArgumentParser) -> None:
    """Arguments that say where and in which batches the model runs."""
    parser.add_argument(
        "--batch-size",
        type=whole(1),
        metavar="N",
        help="images of equal size per call of the model (default: 1 on a CPU, where an image's tokens then do not "
        "depend on its neighbours in the last bit; 16 on a GPU)",
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Encode images."""
    from driftvq.tokens.format import check_output, finished, partial_folder

    done = args.resume and not args.overwrite and finished(args.out)
    if not done:
        check_output(args.out, overwrite=args.overwrite, resume=args.resume)

    from driftvq.data.sources import open_source
    from driftvq.models.running import find_room, load_model
    from driftvq.progress import Progress
    from driftvq.tokens.encoding import encode_source

    source = open_source(args.images, split="all")
    model, device, batch_size = load_model(args.model, args.device, args.batch_size)
    try:
        with Progress("encoding", len(source)) as progress:
            tokens = encode_source(
                model,
                source,
                args.out,
                size=args.size,
                batch_size=batch_size,
                workers=args.workers,
                strict=args.strict,
                settings={"images": args.images, "device": device.type},
                overwrite=args.overwrite,
                resume=args.resume,
                room=find_room(model, args.workers, max_pixels=args.max_pixels),
                progress=progress.add,
            )
    except (KeyboardInterrupt, ValueError, OSError):
        if partial_folder(args.out).is_dir():
            say(f"what is done is kept in {partial_folder(args.out)}; the same command with --resume goes on")
        raise
    index = tokens.index
    if done:
        say(f"{args.out} is complete, nothing is left to do")
        return
    say(f"wrote {index.n:,} image{'s' * (index.n != 1)}, {index.tokens:,} tokens ({index.model.dtype}) to {args.out}")
    if index.skipped:
        say(f"skipped {index.skipped:,} of {index.n + index.skipped:,} images, listed in {args.out / 'skipped.txt'}")
