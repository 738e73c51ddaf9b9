"""``driftvq encode``: images to tokens."""

import argparse
from pathlib import Path

from driftvq.cli.arguments import RUNNING, WHOSE, arg, number, say

EXAMPLES = """examples:
  driftvq encode runs/x photos/ -o tokens             each image at its own size
  driftvq encode runs/x photos/ -o tokens --size 256  the centre square of each, scaled to 256
  driftvq encode runs/x photos/ -o tokens --resume    go on after an interruption

docs/tokens.md says what is in the folder and how to read it with numpy alone.
"""
ARGUMENTS = (
    WHOSE,
    arg("images", metavar="IMAGES", help="a folder, a list (.txt, .lst), shards (.tar), hf:NAME or one image"),
    arg("-o", "--out", type=Path, required=True, metavar="TOKENS", help="token folder to make"),
    *RUNNING,
    number("--workers", "processes that read ahead (default: 0)", 0, default=0),
    arg("--strict", action="store_true", help="stop at an unreadable image instead of skipping it"),
    arg("--overwrite", action="store_true", help="replace an existing token folder"),
    arg("--resume", action="store_true", help="go on with an interrupted run"),
)


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
            room = find_room(model, args.workers, max_pixels=args.max_pixels)
            options = {name: getattr(args, name) for name in ("size", "workers", "strict", "overwrite", "resume")}
            options |= {"batch_size": batch_size, "settings": {"images": args.images, "device": device.type}}
            index = encode_source(model, source, args.out, room=room, progress=progress.add, **options).index
    except (KeyboardInterrupt, ValueError, OSError):
        if partial_folder(args.out).is_dir():
            say(f"what is done is kept in {partial_folder(args.out)}; the same command with --resume goes on")
        raise
    if done:
        say(f"{args.out} is complete, nothing is left to do")
        return
    say(f"wrote {index.n:,} image{'s' * (index.n != 1)}, {index.tokens:,} tokens ({index.model.dtype}) to {args.out}")
    if index.skipped:
        say(f"skipped {index.skipped:,} of {index.n + index.skipped:,} images, listed in {args.out / 'skipped.txt'}")
